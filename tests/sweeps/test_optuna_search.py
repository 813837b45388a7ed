"""A search chooses the same trials from the same seed, and goes on where its process was killed."""

import json
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from diglot.errors import UserError
from diglot.evaluation.validation import Validation
from diglot.sweeps.search import PICTURES, Search, distribution, load_optuna, write_pictures

optuna = pytest.importorskip("optuna")
WORDS = ("model.dropout=interval(0.0,0.3)", "model.n_heads=1,2,4", "scheduler.lr=tag(log,interval(5e-4,5e-3))")


class Result:
    """A job with a score that its values determine, and without validations."""

    folder, status = Path("no such folder"), "finished"

    def __init__(self, params: dict) -> None:
        self.score = (
            None if params["model.n_heads"] == "none" else params["model.dropout"] + int(params["model.n_heads"])
        )

    def value(self, objective: str) -> float:
        assert objective == "dev/bleu"
        return self.score


def space_of(*words: str) -> dict:
    parsed = OverridesParser.create().parse_overrides(list(words))
    return {override.get_key_element(): distribution(override) for override in parsed}


def new_search(journal: Path | None = None, words: tuple[str, ...] = WORDS, name: str = "x") -> Search:
    load_optuna()
    return Search(
        space_of(*words), lambda n: optuna.samplers.TPESampler(seed=n, n_startup_trials=3), "maximize", name, journal
    )


def go_on(search: Search, total: int = 7, batch: int = 1) -> None:
    while trials := search.next_trials(batch, total):
        for trial in trials:
            search.tell(trial, Result(trial.params), "dev/bleu")


def ended(search: Search) -> list[tuple]:
    """Return the values, the score and the state of each trial that was not given up."""
    return [(t.params, t.value, t.state.name) for t in search.study.trials if t.params.keys() == search.space.keys()]


@pytest.mark.parametrize("batch", [1, 3])
def test_a_search_killed_at_any_byte_of_its_journal_ends_with_the_same_trials(tmp_path, batch):
    whole = new_search(tmp_path / "whole.jsonl")
    go_on(whole, batch=batch)
    assert len(ended(whole)) == 7
    assert {state for *_, state in ended(whole)} == {"COMPLETE"}
    lines = (tmp_path / "whole.jsonl").read_bytes().splitlines(keepends=True)
    for n in range(len(lines)):
        for half in (b"", lines[n][:9]):
            journal = tmp_path / f"{n}_{len(half)}.jsonl"
            journal.write_bytes(b"".join(lines[:n]) + half)
            search = new_search(journal)
            go_on(search, batch=batch)
            assert ended(search) == ended(whole), (n, half)
            assert not new_search(journal).next_trials(9, 7), "it is done, and does nothing more"


def test_without_a_journal_the_trials_are_the_same(tmp_path):
    in_memory, on_disk = new_search(), new_search(tmp_path / "j")
    for search in (in_memory, on_disk):
        go_on(search, 5)
    assert ended(in_memory) == ended(on_disk)
    assert len({str(params) for params, *_ in ended(in_memory)}) == 5


def test_a_longer_search_continues_and_another_search_has_its_own_trials(tmp_path):
    go_on(new_search(tmp_path / "j"), 3)
    longer = new_search(tmp_path / "j")
    go_on(longer, 5)
    straight = new_search()
    go_on(straight, 5)
    assert ended(longer) == ended(straight)
    other = new_search(tmp_path / "j", name="y")
    assert not other.study.trials


def test_a_trial_that_failed_is_repeated_by_the_next_command_and_counts_once(tmp_path):
    search = new_search(tmp_path / "j")
    (trial,) = search.next_trials(1, 3)
    search.tell(trial, None, "dev/bleu")
    go_on(search, 3)
    assert [state for *_, state in ended(search)] == ["FAIL", "COMPLETE", "COMPLETE"], "once under the same command"
    for _ in range(2):  # killed before the repeated trial has ended
        (again,) = new_search(tmp_path / "j").next_trials(9, 3)
        assert again.params == trial.params
    search = new_search(tmp_path / "j")
    go_on(search, 3)
    assert [state for *_, state in ended(search)] == ["FAIL", "COMPLETE", "COMPLETE", "COMPLETE"]
    assert not new_search(tmp_path / "j").next_trials(9, 3)


def test_a_trial_that_was_stopped_is_pruned_and_repeated_only_without_a_rule(tmp_path):
    job = Result({"model.dropout": 0.0, "model.n_heads": "1"})
    job.folder, job.status, job.score = tmp_path / "01", "stopped", None
    for update, value in ((10, 3.0), (20, 4.0)):
        Validation(update, 100, "dev/bleu", value).write(job.folder)
    search = new_search(tmp_path / "j")
    (trial,) = search.next_trials(1, 2)
    search.tell(trial, job, "dev/bleu")
    go_on(search, 2)
    (pruned, _) = search.study.trials
    assert (pruned.state.name, pruned.value, pruned.intermediate_values) == ("PRUNED", 4.0, {10: 3.0, 20: 4.0})
    assert not new_search(tmp_path / "j").next_trials(9, 2)
    repeats = Search(search.space, search.sampler, "maximize", "x", tmp_path / "j", repeats_pruned=True)
    (again,) = repeats.next_trials(9, 2)
    assert again.params == pruned.params
    search = new_search(tmp_path / "j")  # the repeated one was running
    go_on(search, 2)
    assert [state for *_, state in ended(search)] == ["PRUNED", "COMPLETE", "COMPLETE"]
    assert not new_search(tmp_path / "j").next_trials(9, 2)


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        ("a=interval(0,1)", optuna.distributions.FloatDistribution(0.0, 1.0)),
        ("a=int(interval(1,3))", optuna.distributions.IntDistribution(1, 3)),
        ("a=tag(log,int(interval(1,64)))", optuna.distributions.IntDistribution(1, 64, log=True)),
        ("a=tag(log,interval(1e-4,1e-2))", optuna.distributions.FloatDistribution(1e-4, 1e-2, log=True)),
        ("a=range(1,6,2)", optuna.distributions.IntDistribution(1, 5, step=2)),  # without its end, as in other sweeps
        ("a=range(0.5,2.0,0.5)", optuna.distributions.FloatDistribution(0.5, 1.5, step=0.5)),
        ("a=1,2", optuna.distributions.CategoricalDistribution(["1", "2"])),
        ("a=choice(x,y)", optuna.distributions.CategoricalDistribution(["x", "y"])),
    ],
)
def test_the_values_of_the_command_line(word, wanted):
    assert space_of(word)["a"] == wanted


def test_values_that_cannot_be_searched_are_named():
    with pytest.raises(UserError, match=r"a=tag\(log,interval\(0,1\)\): Optuna cannot choose from it"):
        space_of("a=tag(log,interval(0,1))")


def test_a_damaged_journal_is_named(tmp_path):
    journal = tmp_path / "search.jsonl"
    journal.write_text('{"op_code": 4}\n{"x"\n{}\n')
    with pytest.raises(UserError, match=r"search\.jsonl: damaged .*delete it to begin the search again"):
        new_search(journal)


def test_a_journal_is_json_that_names_no_class_to_load(tmp_path):
    journal = tmp_path / "j"
    go_on(new_search(journal), 2)
    for line in journal.read_text().splitlines():
        assert "pickle" not in line
        assert json.loads(line)["op_code"] in range(11)


def test_the_pictures_are_written(tmp_path):
    search = new_search()
    assert write_pictures(search, tmp_path, "dev/bleu") == []
    go_on(search, 1)
    assert write_pictures(search, tmp_path, "dev/bleu") == [PICTURES[0], PICTURES[2]], "one score says nothing of keys"
    go_on(search, 4)
    assert write_pictures(search, tmp_path, "dev/bleu") == list(PICTURES)
    for name in PICTURES:
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
