"""The keys in which configs differ, with the values of all of them."""

from diglot.sweeps.differing import MAX_VALUE, differing_keys


def test_keys_that_differ_are_listed_with_all_values() -> None:
    configs = [
        {"seed": 1, "model": {"n_heads": 1, "d_ff": 8}, "run": {"folder": "a"}, "scheduler": {"lr": 0.1}},
        {"seed": 2, "model": {"n_heads": 1, "d_ff": 8}, "run": {"folder": "b"}, "scheduler": {"lr": 0.1}},
        {"seed": 1, "model": {"n_heads": 2, "d_ff": 8}, "run": {"folder": "c"}, "scheduler": {"lr": 0.1}},
        {"seed": 1, "model": {"n_heads": 1, "d_ff": "x" * 1000}, "run": {"folder": "d"}, "scheduler": {"lr": None}},
    ]
    found = differing_keys(configs)
    assert list(found) == ["model.n_heads", "model.d_ff", "scheduler.lr"]
    assert found["model.n_heads"] == ["1", "1", "2", "1"]
    assert found["scheduler.lr"] == ["0.1", "0.1", "0.1", "null"]
    assert found["model.d_ff"][3] == "x" * (MAX_VALUE - 1) + "…"
    assert differing_keys(configs[:2]) == {}
    assert differing_keys(configs[:1]) == {}


def test_the_keys_of_a_mapping_that_another_config_lacks_are_listed() -> None:
    target = "no_such_module.Class"  # is not imported
    configs = [{"callbacks": {}}, {"callbacks": {"ema": {"_target_": target, "decay": 0.9, "parts": {}}}}]
    assert differing_keys(configs) == {
        "callbacks": ["{}", ""],
        "callbacks.ema._target_": ["", target],
        "callbacks.ema.decay": ["", "0.9"],
        "callbacks.ema.parts": ["", "{}"],
    }
