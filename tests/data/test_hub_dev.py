"""Further dev sets from datasets in the Hub's form, from local files and without a network."""

import json
from pathlib import Path
from typing import Any

import pytest

from diglot.data.corpus import Sample
from diglot.data.held_out import DevSet, FurtherDev
from diglot.data.module import TranslationData
from diglot.data.options import DataOptions
from diglot.data.text import ParallelText
from diglot.data.tokenizer import Tokenizer
from diglot.errors import UserError

ROWS = [{"translation": {"avi": f"Lo {i}", "bol": f"Sog {i}" if i else ""}} for i in range(4)]


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


def json_lines(folder: Path) -> str:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return str(folder / "rows.jsonl")


def saved(folder: Path) -> str:
    """Return a folder with a dataset of two splits, as `save_to_disk` writes it."""
    import datasets

    splits = {name: datasets.Dataset.from_list(ROWS[:n]) for name, n in (("validation", 3), ("extra", 2))}
    datasets.DatasetDict(splits).save_to_disk(folder / "saved")
    return str(folder / "saved")


def read(folder: Path, **node: Any) -> ParallelText:
    further = FurtherDev("wmt", node, Sample())
    further.prepare(folder / "cache")
    return further.read(folder / "cache")


def test_a_split_is_read_with_all_its_rows(tmp_path: Path) -> None:
    path = saved(tmp_path)
    assert read(tmp_path, hub=path) == ParallelText(["Lo 0", "Lo 1", "Lo 2"], ["", "Sog 1", "Sog 2"])
    assert read(tmp_path, hub=path, split="extra").src == ["Lo 0", "Lo 1"]
    assert read(tmp_path, hub=path, split="validation[1:]").src == ["Lo 1", "Lo 2"]
    turned = FurtherDev("wmt", {"hub": path, "src_lang": "bol", "tgt_lang": "avi"}, Sample())
    assert turned.dev_set == DevSet("dev_wmt", "bol", "avi")
    turned.prepare(tmp_path / "cache")
    assert turned.read(tmp_path / "cache").src == ["", "Sog 1", "Sog 2"]


def test_a_run_prepares_the_set_and_scores_it(tmp_path: Path, tokenizer: Tokenizer) -> None:
    node = {"hub": "json", "data_files": {"validation": json_lines(tmp_path)}}
    options = DataOptions(cache_dir=str(tmp_path / "cache"), tokens_per_batch=600, further_dev={"wmt": node})
    made = TranslationData(corpus=Sample(), tokenizer=tokenizer, seed=1, options=options)
    made.prepare_data()
    made.setup()
    assert made.sizes["dev_wmt"] == 4
    assert made.held_out["dev_wmt"].tgt == ["", "Sog 1", "Sog 2", "Sog 3"]
    assert "dev_wmt" in made.digests


def test_a_set_is_not_fetched_without_being_prepared(tmp_path: Path) -> None:
    further = FurtherDev("wmt", {"hub": "owner/name"}, Sample())
    with pytest.raises(UserError, match=r"hub avi-bol is not prepared .*: run `make prepare`"):
        further.read(tmp_path / "cache")


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"splits": "x"}, "data.further_dev.wmt.splits is not known; the keys of a set of the Hub are hub, split, "),
        ({"split": "test"}, "data.further_dev.wmt.split=test: the dataset has validation, extra"),
        ({"split": "validation["}, "data.further_dev.wmt.split=validation["),
        ({"column": "other"}, "data.further_dev.wmt.column=other: the dataset's columns are translation"),
        ({"tgt_lang": "en"}, "data.further_dev.wmt.tgt_lang=en: the dataset"),
        ({"hub": "./none"}, "data.further_dev.wmt.hub=./none: no such file or folder; for local files, type data.fur"),
        (
            {"hub": "json"},
            "data.further_dev.wmt.data_files is missing: it names the files that data.further_dev.wmt.hub",
        ),
        ({"src_lang": "bol"}, "data.further_dev.wmt.src_lang and data.further_dev.wmt.tgt_lang are both bol"),
    ],
)
def test_a_wrong_value_is_refused_by_its_key(node: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        read(tmp_path, **{"hub": saved(tmp_path), **node})
    assert str(error.value).startswith(message)
