"""Sets of the hub's form, from local files and without a network."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diglot.data.hub import Hub
from diglot.data.text import ParallelText
from diglot.errors import UserError

Row = dict[str, Any]
NESTED = [
    {"translation": {"de": "eins\r\nzwei", "en": "one\ntwo"}},
    {"translation": {"de": "drei\u2028vier", "en": " three\r"}},
    {"translation": {"de": "  ", "en": "blank"}},
    {"translation": {"de": None, "en": "none"}},
    {"translation": {"de": '"NA"', "en": "NA"}},
]
CLEAN = ParallelText(["eins zwei", "drei\u2028vier", '"NA"'], ["one two", "three", "NA"])
ONLY_TRAIN = {"train": "train", "dev": None, "test": None}


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    yield
    datasets.enable_progress_bars()


def json_lines(path: Path, rows: list[Row]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def json_hub(path: Path, rows: list[Row], **options: Any) -> Hub:
    arguments = {"path": "json", "data_files": json_lines(path, rows), "splits": ONLY_TRAIN}
    return Hub(**arguments | {"src_lang": "de", "tgt_lang": "en"} | options)


def prepared(corpus: Hub, cache: Path) -> dict[str, ParallelText]:
    corpus.prepare(cache)
    return corpus.load(cache)


def test_json_lines_become_pairs_of_one_line_each(tmp_path: Path) -> None:
    files = {
        "train": json_lines(tmp_path / "train.jsonl", NESTED),
        "validation": json_lines(tmp_path / "dev.jsonl", NESTED),
    }
    corpus = Hub(
        path="json", data_files=files, splits={"train": "train", "dev": "validation"}, src_lang="de", tgt_lang="en"
    )
    splits = prepared(corpus, tmp_path / "cache")
    assert splits["train"] == CLEAN
    # Only train loses its blank pairs.
    assert splits["dev"].src == ["eins zwei", "drei\u2028vier", "", "", '"NA"']
    assert set(splits) == {"train", "dev"}


def test_parquet_with_a_column_a_language_becomes_pairs(tmp_path: Path) -> None:
    import datasets

    path = tmp_path / "rows.parquet"
    datasets.Dataset.from_list([row["translation"] for row in NESTED]).to_parquet(path)
    corpus = Hub(path="parquet", data_files=str(path), splits=ONLY_TRAIN, column=None, src_lang="en", tgt_lang="de")
    assert prepared(corpus, tmp_path / "cache")["train"] == ParallelText(CLEAN.tgt, CLEAN.src)


def test_a_local_set_in_the_hubs_layout_is_loaded_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    for split in ("train", "validation", "test"):
        json_lines(
            tmp_path / "set" / f"{split}.jsonl", [{"translation": {"de": f"{split} eins", "en": f"{split} one"}}]
        )
    splits = prepared(Hub(path=str(tmp_path / "set"), src_lang="de", tgt_lang="en"), tmp_path / "cache")
    assert {split: pairs.src for split, pairs in splits.items()} == {
        "train": ["train eins"],
        "dev": ["validation eins"],
        "test": ["test eins"],
    }


def test_slices_and_a_limit_choose_pairs(tmp_path: Path) -> None:
    rows = [{"translation": {"de": f"de {i}", "en": f"en {i}"}} for i in range(10)]
    splits = {"train": "train[:8]", "dev": "train[8:]"}
    corpus = json_hub(tmp_path / "rows.jsonl", rows, splits=splits, max_train_pairs=3)
    read = prepared(corpus, tmp_path / "cache")
    assert read["train"].src == ["de 0", "de 1", "de 2"]
    assert read["dev"].src == ["de 8", "de 9"]


def test_reading_needs_no_datasets_once_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = json_hub(tmp_path / "rows.jsonl", NESTED)
    with pytest.raises(UserError, match="hub de-en is not prepared"):
        corpus.load(tmp_path / "cache")
    corpus.prepare(tmp_path / "cache")
    shutil.rmtree(tmp_path / "cache" / "hub" / "datasets")

    def no_loading(_: Path) -> None:
        raise AssertionError("prepared text is not loaded again")

    monkeypatch.setattr(corpus, "_load", no_loading)
    assert prepared(corpus, tmp_path / "cache")["train"] == CLEAN


def test_a_changed_file_is_converted_anew(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    prepared(json_hub(path, NESTED), tmp_path / "cache")
    changed = json_hub(path, [{"translation": {"de": "neu", "en": "new"}}])
    assert prepared(changed, tmp_path / "cache")["train"] == ParallelText(["neu"], ["new"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"src_lang": "fr"}, r"data\.src_lang=fr: the set json has de, en"),
        ({"tgt_lang": "fr"}, r"data\.tgt_lang=fr"),
        ({"column": "text"}, r"data\.column=text: the set's columns are translation"),
        ({"column": None}, r"data\.src_lang=de: the set json has translation"),
        ({"splits": {"train": "train", "dev": "validation"}}, r'Unknown split "validation"'),
        ({"data_files": "absent.jsonl"}, r"data\.path=json: .*absent\.jsonl"),
    ],
)
def test_what_the_set_does_not_have_is_refused_in_one_line(tmp_path: Path, options: Row, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        json_hub(tmp_path / "rows.jsonl", NESTED, **options).prepare(tmp_path / "cache")
    assert "\n" not in str(caught.value)


def test_a_sentence_that_is_no_text_is_refused(tmp_path: Path) -> None:
    rows = [{"translation": {"de": ["a", "b"], "en": ["c"]}}]
    with pytest.raises(UserError, match="a sentence of the set is a list, not text"):
        json_hub(tmp_path / "rows.jsonl", rows).prepare(tmp_path / "cache")


def test_rows_without_a_translation_are_blank(tmp_path: Path) -> None:
    rows = [{"translation": None}, {"translation": {"de": "a", "en": "b"}}]
    read = prepared(json_hub(tmp_path / "rows.jsonl", rows, config="de-en"), tmp_path / "cache")
    assert read["train"] == ParallelText(["a"], ["b"])


def test_a_column_of_text_does_not_hold_languages(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data\.column=de: it does not hold languages"):
        json_hub(tmp_path / "rows.jsonl", [{"de": "a", "en": "b"}], column="de").prepare(tmp_path / "cache")


def test_a_file_that_is_no_json_is_refused_in_one_line(tmp_path: Path) -> None:
    corpus = json_hub(tmp_path / "rows.jsonl", NESTED)
    (tmp_path / "rows.jsonl").write_text("{not json")
    with pytest.raises(UserError, match=r"data\.path=json: .*JSON parse error"):
        corpus.prepare(tmp_path / "cache")


def test_a_hub_out_of_reach_names_the_local_way(tmp_path: Path) -> None:
    corpus = Hub(path="wmt14", config="de-en", src_lang="de", tgt_lang="en")
    with pytest.raises(UserError, match=r"data\.path=wmt14: the hub cannot be reached; .*data=files.*data\.path=json"):
        corpus.prepare(tmp_path)
    assert list(tmp_path.glob("hub/wmt14*")) == []


def test_an_unknown_set_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def not_found(*_: object, **__: object) -> None:
        raise datasets.exceptions.DatasetNotFoundError("Dataset 'no/set' doesn't exist")

    monkeypatch.setattr(datasets, "load_dataset", not_found)
    with pytest.raises(UserError, match=r"data\.path=no/set: no such set on the hub"):
        Hub(path="no/set", src_lang="de", tgt_lang="en").prepare(tmp_path)


def test_a_set_that_is_a_script_is_refused_and_not_run(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "set.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(UserError, match="only as a script"):
        Hub(path=str(tmp_path / "set"), src_lang="de", tgt_lang="en").prepare(tmp_path / "cache")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "json"}, r"data\.data_files is missing"),
        ({"splits": {"train": "train", "valid": "validation"}}, r"data\.splits\.valid is not known"),
        ({"splits": {"test": "test"}}, r"data\.splits\.train is missing"),
        ({"max_train_pairs": 0}, r"data\.max_train_pairs=0"),
    ],
)
def test_wrong_arguments_are_refused_naming_the_key(options: Row, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Hub(**{"path": "some/set", "src_lang": "de", "tgt_lang": "en"} | options)
