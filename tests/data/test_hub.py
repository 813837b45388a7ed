"""Tests of datasets in the Hub's form, from local files and without a network."""

import gzip
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from diglot.config import CONF, build_corpus
from diglot.data import hub
from diglot.data.corpus import Files, read_prepared
from diglot.data.hub import Hub
from diglot.data.readers.opening import zstd
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
# Texts that readers tend to change. Each must stay as it is, except for whitespace at its ends.
ODD = [
    "a\u2028b",
    "a\x00b",
    "a\x85b",
    'say "no"',
    "NA",
    "null",
    "2020-01-01",
    "12",
    "true",
    "a\tb,c",
    "\\n",
    "日本 👍",
    "'",
]
TEN = [{"translation": {"de": f"de {i}", "en": f"en {i}"}} for i in range(10)]


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    yield
    datasets.enable_progress_bars()
    datasets.logging.set_verbosity_warning()


def json_lines(path: Path, rows: list[Row]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def flat_parquet(path: Path) -> Hub:
    """Return the corpus of a Parquet file with a column for each language."""
    return Hub(path="parquet", data_files=str(path), splits=ONLY_TRAIN, column=None, src_lang="de", tgt_lang="en")


def json_hub(path: Path, rows: list[Row], **options: Any) -> Hub:
    arguments = {"path": "json", "data_files": json_lines(path, rows), "splits": ONLY_TRAIN}
    return Hub(**arguments | {"src_lang": "de", "tgt_lang": "en"} | options)


def prepared(corpus: Hub, cache: Path) -> dict[str, ParallelText]:
    """Return the splits as they are prepared, before dev and test are split off."""
    corpus.prepare(cache)
    return {split: text.load() for split, text in read_prepared(corpus._folder(cache), corpus).items()}


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
    # Only train drops its blank pairs.
    assert splits["dev"].src == ["eins zwei", "drei\u2028vier", "", "", '"NA"']
    assert set(splits) == {"train", "dev"}


def as_json(path: Path, rows: list[Row]) -> None:
    json_lines(path, rows)


def as_gzip(path: Path, rows: list[Row]) -> None:
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))


def as_zstd(path: Path, rows: list[Row]) -> None:
    path.write_bytes(zstd.compress("".join(json.dumps(row, ensure_ascii=False) + "\r\n" for row in rows).encode()))


def as_parquet(path: Path, rows: list[Row]) -> None:
    import datasets

    datasets.Dataset.from_list(rows).to_parquet(path)


def as_large_strings(path: Path, rows: list[Row]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist(rows)
    large = pa.struct([(name, pa.large_string()) for name in rows[0]["translation"]])
    pq.write_table(table.cast(pa.schema([("translation", large)])), path, row_group_size=3)


def as_arrow_stream(path: Path, rows: list[Row]) -> None:
    import pyarrow as pa

    table = pa.Table.from_pylist(rows)
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=4)


def as_arrow_file(path: Path, rows: list[Row]) -> None:
    import pyarrow as pa

    table = pa.Table.from_pylist(rows)
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=4)


READERS = [
    ("json", "rows.jsonl", as_json),
    ("json", "rows[1].jsonl.gz", as_gzip),
    ("json", "rows.jsonl.zst", as_zstd),
    ("parquet", "rows.parquet", as_parquet),
    ("parquet", "rows.parquet", as_large_strings),
    ("arrow", "rows.arrow", as_arrow_stream),
    ("arrow", "rows.arrow", as_arrow_file),
]


@pytest.mark.parametrize(("reader", "name", "write"), READERS)
def test_every_reader_returns_the_text_of_the_file(
    tmp_path: Path, reader: str, name: str, write: Callable[[Path, list[Row]], None]
) -> None:
    """Read more rows than fit into one batch, with texts that occur only in late rows."""
    rows = [*NESTED, *({"translation": {"de": odd, "en": f"{odd} {i}"}} for i, odd in enumerate(ODD * 90))]
    write(tmp_path / name, rows)
    corpus = Hub(path=reader, data_files=str(tmp_path / name), splits=ONLY_TRAIN, src_lang="de", tgt_lang="en")
    train = prepared(corpus, tmp_path / "cache")["train"]
    assert train.src == CLEAN.src + ODD * 90
    assert train.tgt == CLEAN.tgt + [f"{odd} {i}" for i, odd in enumerate(ODD * 90)]
    source = next((tmp_path / "cache" / "hub").glob("*/SOURCE.txt")).read_text()
    assert f"train: {len(train)} pairs of {len(rows)} rows" in source
    assert "dropped from train for a blank side: 2" in source
    assert [path.name for path in (tmp_path / "cache" / "hub").iterdir()] == [corpus._folder(tmp_path / "cache").name]


def test_a_column_per_language_becomes_pairs(tmp_path: Path) -> None:
    rows = [row["translation"] for row in NESTED]
    as_parquet(tmp_path / "rows.parquet", rows)
    json_lines(tmp_path / "rows.jsonl", rows)
    for reader, name in (("parquet", "rows.parquet"), ("json", "rows.jsonl")):
        corpus = Hub(
            path=reader,
            data_files=str(tmp_path / name),
            splits=ONLY_TRAIN,
            column=None,
            src_lang="en",
            tgt_lang="de",
        )
        assert prepared(corpus, tmp_path / "cache")["train"] == ParallelText(CLEAN.tgt, CLEAN.src)


def test_several_files_are_read_in_the_order_given(tmp_path: Path) -> None:
    """Check also that the types of the first file do not change how later ones are read."""
    texts = ["abc", "2020-01-01", "5"]
    for number, text in enumerate(texts):
        json_lines(tmp_path / f"part-{number}.jsonl", [{"translation": {"de": text, "en": "x", f"l{number}": "y"}}])
    listed = [str(tmp_path / f"part-{number}.jsonl") for number in (2, 0)]
    for data_files, expected in (
        (str(tmp_path / "part-*.jsonl"), texts),
        (listed, ["5", "abc"]),
        ({"train": [*listed, str(tmp_path / "*-1.jsonl")]}, ["5", "abc", "2020-01-01"]),
    ):
        corpus = Hub(path="json", data_files=data_files, splits=ONLY_TRAIN, src_lang="de", tgt_lang="en")
        assert prepared(corpus, tmp_path / "cache")["train"].src == expected


@pytest.mark.parametrize("splits", [ONLY_TRAIN, {"train": "train", "test": "held"}])
def test_a_folder_that_datasets_saved_is_read(tmp_path: Path, splits: dict[str, str]) -> None:
    import datasets

    datasets.disable_progress_bars()
    saved: Any = datasets.Dataset.from_list(NESTED)
    if "held" in splits.values():
        saved = datasets.DatasetDict(train=saved, held=saved)
    saved.save_to_disk(tmp_path / "saved")
    read = prepared(Hub(path=str(tmp_path / "saved"), splits=splits, src_lang="de", tgt_lang="en"), tmp_path / "cache")
    assert read["train"] == CLEAN
    assert set(read) == {split for split, name in splits.items() if name}


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


@pytest.mark.parametrize("reader", ["json", "parquet"])
@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("train[:4]", range(4)),
        ("train[8:]", range(8, 10)),
        ("train[2:5]", range(2, 5)),
        ("train[-3:]", range(7, 10)),
        ("train[:-8]", range(2)),
        ("train[:25%]", range(2)),
        ("train[90%:]", range(9, 10)),
        ("train[-20%:]", range(8, 10)),
        ("train[:]", range(10)),
        ("train[8:]+train[:1]", [8, 9, 0]),
    ],
)
def test_slices_select_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str, name: str, chosen: list[int]
) -> None:
    monkeypatch.setattr(hub, "_BATCH_SIZE", 3)
    {"json": as_json, "parquet": as_parquet}[reader](tmp_path / "rows", TEN)
    corpus = Hub(
        path=reader,
        data_files=str(tmp_path / "rows"),
        splits={"train": "train", "dev": name},
        src_lang="de",
        tgt_lang="en",
    )
    assert prepared(corpus, tmp_path / "cache")["dev"].src == [f"de {i}" for i in chosen]


def test_a_limit_takes_the_first_train_rows(tmp_path: Path) -> None:
    splits = {"train": "train[2:4]+train[5:8]", "dev": "train[8:]"}
    corpus = json_hub(tmp_path / "rows.jsonl", TEN, splits=splits, max_train_pairs=3)
    read = prepared(corpus, tmp_path / "cache")
    assert read["train"].src == ["de 2", "de 3", "de 5"]
    assert read["dev"].src == ["de 8", "de 9"]


def test_rows_after_the_slice_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_BATCH_SIZE", 2)
    corpus = json_hub(tmp_path / "rows.jsonl", TEN, max_train_pairs=4)
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write("{not json")
    assert len(prepared(corpus, tmp_path / "cache")["train"]) == 4


def test_expected_counts_are_those_of_the_rows(tmp_path: Path) -> None:
    expected = {"train": 5, "dev": 5, "test": None}
    corpus = json_hub(tmp_path / "rows.jsonl", NESTED, splits={"train": "train", "dev": "train"}, expected=expected)
    assert len(prepared(corpus, tmp_path / "cache")["train"]) == 3


@pytest.mark.parametrize("split", ["train", "dev"])
def test_other_counts_than_expected_are_refused(tmp_path: Path, split: str) -> None:
    splits = {"train": "train", "dev": "train"}
    corpus = json_hub(tmp_path / "rows.jsonl", NESTED, splits=splits, expected={split: 6})
    with pytest.raises(UserError, match=rf"data\.expected\.{split}=6: 5 rows found; .*another revision"):
        corpus.prepare(tmp_path / "cache")
    assert list((tmp_path / "cache" / "hub").iterdir()) == []


@pytest.mark.parametrize("options", [{"max_train_pairs": 3}, {"splits": {"train": "train[:3]"}}])
def test_a_part_of_a_split_is_not_counted(tmp_path: Path, options: Row) -> None:
    corpus = json_hub(tmp_path / "rows.jsonl", TEN, expected={"train": 10}, **options)
    assert len(prepared(corpus, tmp_path / "cache")["train"]) == 3


def test_an_interrupted_conversion_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_parquet(tmp_path / "rows.parquet", TEN)
    corpus = Hub(
        path="parquet", data_files=str(tmp_path / "rows.parquet"), splits=ONLY_TRAIN, src_lang="de", tgt_lang="en"
    )
    monkeypatch.setattr(hub, "_BATCH_SIZE", 2)
    whole = hub._one_line

    def interrupted(text: str | None) -> str:
        if text == "de 7":
            raise KeyboardInterrupt
        return whole(text)

    monkeypatch.setattr(hub, "_one_line", interrupted)
    with pytest.raises(KeyboardInterrupt):
        corpus.prepare(tmp_path / "cache")
    assert list((tmp_path / "cache" / "hub").iterdir()) == []
    monkeypatch.setattr(hub, "_one_line", whole)
    assert len(prepared(corpus, tmp_path / "cache")["train"]) == 10


def test_reading_needs_no_datasets_once_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = json_hub(tmp_path / "rows.jsonl", NESTED)
    with pytest.raises(UserError, match="hub de-en is not prepared"):
        corpus.load(tmp_path / "cache")
    corpus.prepare(tmp_path / "cache")

    def no_loading(_: str) -> None:
        raise AssertionError("prepared text is not loaded again")

    monkeypatch.setattr(corpus, "_sources", no_loading)
    assert prepared(corpus, tmp_path / "cache")["train"] == CLEAN


def test_a_changed_file_is_converted_anew(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    prepared(json_hub(path, NESTED), tmp_path / "cache")
    changed = json_hub(path, [{"translation": {"de": "neu", "en": "new"}}])
    assert prepared(changed, tmp_path / "cache")["train"] == ParallelText(["neu"], ["new"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"src_lang": "fr"}, r"data\.src_lang=fr: the dataset json has de, en"),
        ({"tgt_lang": "fr"}, r"data\.tgt_lang=fr"),
        ({"column": "text"}, r"data\.column=text: the dataset's columns are translation"),
        ({"column": None}, r"data\.src_lang=de: the dataset json has translation"),
        ({"splits": {"train": "train[:50]"}}, r"data\.splits\.train=train\[:50\]: train has fewer rows"),
        ({"splits": {"train": "train[8:]"}}, r"split 'train\[8:\]' has no pairs"),
        ({"data_files": "absent.jsonl"}, r"data\.path=json: .*absent\.jsonl"),
        ({"data_files": "absent*.jsonl"}, r"data\.data_files=\['absent\*\.jsonl'\]: no file found for split"),
    ],
)
def test_anything_missing_from_the_dataset_is_refused_in_one_line(tmp_path: Path, options: Row, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        json_hub(tmp_path / "rows.jsonl", NESTED, **options).prepare(tmp_path / "cache")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("value", "kind"), [(["a"], "list"), (5, "int"), (False, "bool"), ({"a": "b"}, "dict")])
def test_a_sentence_that_is_not_text_is_refused_with_its_line(tmp_path: Path, value: object, kind: str) -> None:
    rows = [*NESTED, {"translation": {"de": "a", "en": value}}]
    corpus = json_hub(tmp_path / "rows.jsonl", rows)
    with pytest.raises(UserError, match=rf"rows\.jsonl, line 6: a sentence has type {kind}, not text"):
        corpus.prepare(tmp_path / "cache")


def test_a_column_of_a_parquet_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    as_parquet(tmp_path / "rows.parquet", [{"de": 5, "en": "five"}])
    corpus = flat_parquet(tmp_path / "rows.parquet")
    with pytest.raises(UserError, match=r"data\.path=parquet: de contains int64, not text"):
        corpus.prepare(tmp_path / "cache")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{not json", r"line 6: not valid JSON; each line must be a JSON object \(.*column 2\)"),
        ('[{"translation": null}]', "line 6: a JSON list; each line must be a JSON object"),
        ('{"translation": {"de": "\\ud800", "en": "a"}}', "line 6: a sentence contains a lone surrogate"),
        ("[" * 100_000, "line 6: not readable as JSON"),
        ('{"translation": "text"}', r"data\.column=translation: not a column of languages"),
    ],
)
def test_a_line_that_is_not_an_object_is_refused(tmp_path: Path, line: str, message: str) -> None:
    corpus = json_hub(tmp_path / "rows.jsonl", NESTED)
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(UserError, match=message) as caught:
        corpus.prepare(tmp_path / "cache")
    assert "\n" not in str(caught.value)
    assert "rows.jsonl" in str(caught.value) or "data." in str(caught.value)
    assert list((tmp_path / "cache" / "hub").iterdir()) == []


@pytest.mark.parametrize("reader", ["parquet", "arrow"])
def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path, reader: str) -> None:
    write = as_parquet if reader == "parquet" else as_arrow_stream
    write(tmp_path / "rows", TEN * 500)
    content = (tmp_path / "rows").read_bytes()
    for damaged in (content[: len(content) // 2], b"no such thing", b""):
        (tmp_path / "rows").write_bytes(damaged)
        corpus = Hub(path=reader, data_files=str(tmp_path / "rows"), splits=ONLY_TRAIN, src_lang="de", tgt_lang="en")
        with pytest.raises(UserError, match=rf"data\.path={reader}(, after row \d+)?: ") as caught:
            corpus.prepare(tmp_path / "cache")
        assert "\n" not in str(caught.value)


def test_a_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa

    text = pa.array([b"a", b"\xff"], pa.binary()).view(pa.string())
    table = pa.table({"de": text, "en": text})
    import pyarrow.parquet as pq

    pq.write_table(table, tmp_path / "rows.parquet")
    corpus = flat_parquet(tmp_path / "rows.parquet")
    with pytest.raises(UserError, match=r"data\.path=parquet, rows 1 to 2: de is not UTF-8"):
        corpus.prepare(tmp_path / "cache")


def test_a_language_that_a_row_lacks_is_blank_there(tmp_path: Path) -> None:
    rows = [{"translation": {"de": "a"}}, {"id": 1}, {"translation": {"en": "b", "de": "c"}}]
    assert prepared(json_hub(tmp_path / "rows.jsonl", rows), tmp_path / "cache")["train"] == ParallelText(["c"], ["b"])


def test_a_byte_order_mark_is_removed(tmp_path: Path) -> None:
    rows = [{"translation": {"de": "\ufeff \ufeffa", "en": "\ufeffb"}}, {"translation": {"de": "\ufeff", "en": "c"}}]
    assert prepared(json_hub(tmp_path / "rows.jsonl", rows), tmp_path / "cache")["train"] == ParallelText(["a"], ["b"])


def test_a_configuration_that_a_folder_does_not_have_is_refused(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    json_lines(tmp_path / "set" / "train.jsonl", NESTED)
    with pytest.raises(UserError, match=r"data\.config=de-en: .* has \['default'\] \(null if there is only one\)"):
        Hub(path=str(tmp_path / "set"), config="de-en", src_lang="de", tgt_lang="en").prepare(tmp_path / "cache")


@pytest.mark.parametrize("name", ["train.csv", "train.txt"])
def test_a_folder_of_text_or_csv_is_refused_with_data_files(tmp_path: Path, name: str) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / name).write_text("de,en\nNA,none\n")
    with pytest.raises(UserError, match=r"reads only JSON Lines, Parquet and Arrow.*data=files"):
        Hub(path=str(tmp_path / "set"), splits=ONLY_TRAIN, src_lang="de", tgt_lang="en").prepare(tmp_path / "cache")


def test_rows_without_a_translation_are_blank(tmp_path: Path) -> None:
    rows = [{"translation": None}, {"translation": {"de": "a", "en": "b"}}]
    read = prepared(json_hub(tmp_path / "rows.jsonl", rows, config="de-en"), tmp_path / "cache")
    assert read["train"] == ParallelText(["a"], ["b"])


def test_a_column_of_text_does_not_hold_languages(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data\.column=de: not a column of languages"):
        json_hub(tmp_path / "rows.jsonl", [{"de": "a", "en": "b"}], column="de").prepare(tmp_path / "cache")


def test_an_unreachable_hub_names_the_options_for_local_files(tmp_path: Path) -> None:
    corpus = Hub(path="wmt14", config="de-en", src_lang="de", tgt_lang="en")
    with pytest.raises(
        UserError, match=r"data\.path=wmt14: .*the Hub cannot be reached; .*data=files data\.train\.file=FILE"
    ):
        corpus.prepare(tmp_path)
    assert list((tmp_path / "hub").iterdir()) == []


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("Dataset 'no/set' doesn't exist on the Hub", r"data\.path=no/set: no such dataset on the Hub"),
        ("Dataset 'no/set' is a gated dataset on the Hub.", r"data\.path=no/set: .*request access on https://hug.*"),
        ("Revision 'x' doesn't exist for dataset", r"data\.revision=x: the dataset no/set has no such revision"),
    ],
)
def test_a_dataset_that_is_unavailable_on_the_hub_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, message: str
) -> None:
    import datasets

    def not_found(*_: object, **__: object) -> None:
        raise datasets.exceptions.DatasetNotFoundError(said)

    monkeypatch.setattr(Hub, "_reach_hub", lambda self: None)
    monkeypatch.setattr(datasets, "load_dataset_builder", not_found)
    with pytest.raises(UserError, match=message):
        Hub(path="no/set", revision="x", src_lang="de", tgt_lang="en").prepare(tmp_path)


def test_the_hubs_conversion_of_a_script_has_a_folder_for_each_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    for name in ("train", "test"):
        (tmp_path / "set" / "de-en" / name).mkdir(parents=True)
        as_parquet(tmp_path / "set" / "de-en" / name / "0000.parquet", NESTED)
    load = datasets.load_dataset_builder

    def local(_: str, revision: str, **options: Any) -> Any:
        assert revision == "refs/convert/parquet"
        return load(str(tmp_path / "set"), **options)

    monkeypatch.setattr(Hub, "_reach_hub", lambda self: None)
    monkeypatch.setattr(datasets, "load_dataset_builder", local)
    read = prepared(
        Hub(
            path="a/script",
            config="de-en",
            revision="refs/convert/parquet",
            splits={"train": "train", "test": "test[:1]"},
            src_lang="de",
            tgt_lang="en",
        ),
        tmp_path / "cache",
    )
    assert read["train"] == CLEAN
    assert read["test"].src == ["eins zwei"]


def test_a_set_that_is_a_script_is_refused_and_not_run(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "set.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(UserError, match=r"only as a script, .*data\.revision=refs/convert/parquet"):
        Hub(path=str(tmp_path / "set"), src_lang="de", tgt_lang="en").prepare(tmp_path / "cache")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": None}, r"data\.path is missing"),
        ({"path": "json"}, r"data\.data_files is missing"),
        ({"path": "csv", "data_files": "a.csv"}, r"data\.path=csv: for text, TSV and CSV, type data=files"),
        ({"src_lang": None}, r"data\.src_lang is missing"),
        ({"tgt_lang": "../en"}, r"data\.tgt_lang=\.\./en: not usable in a file name"),
        ({"tgt_lang": "de"}, r"data\.src_lang and data\.tgt_lang are both de"),
        ({"splits": {"train": "train", "valid": "validation"}}, r"data\.splits\.valid is not known"),
        ({"splits": {"test": "test"}}, r"data\.splits\.train is missing"),
        ({"splits": {"train": "train[5]"}}, r"data\.splits\.train=train\[5\]: must be a name, or a slice"),
        ({"splits": {"train": "train[5%:9]"}}, r"data\.splits\.train=train\[5%:9\]: both ends must be in rows"),
        ({"splits": {"train": "train[:101%]"}}, r"data\.splits\.train=train\[:101%\]: must be at most 100"),
        ({"expected": {"valid": 5}}, r"data\.expected\.valid is not known"),
        ({"max_train_pairs": 0}, r"data\.max_train_pairs=0"),
    ],
)
def test_wrong_arguments_are_refused_naming_the_key(options: Row, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Hub(**{"path": "some/set", "src_lang": "de", "tgt_lang": "en"} | options)


RECIPES = sorted(path.stem for path in (CONF / "data").glob("*.yaml") if "defaults: [hub," in path.read_text())


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_are_complete(name: str, compose_train: Callable[..., DictConfig]) -> None:
    config = compose_train(f"data={name}")
    assert set(config.data) == set(compose_train("data=hub").data)
    corpus = build_corpus(config.data)
    assert isinstance(corpus, Hub)
    assert name.endswith(f"{corpus.src_lang}_{corpus.tgt_lang}")
    assert set(corpus.expected) == set(corpus.splits) == {"train", "dev", "test"}
    turned = build_corpus(compose_train(f"data={name}", "data.src_lang=en", f"data.tgt_lang={corpus.src_lang}").data)
    assert turned.src_lang == "en"


def test_recipes_exist() -> None:
    assert {"wmt14_de_en", "wmt14_fr_en", "wmt16_ro_en", "wmt17_de_en", "iwslt2017_de_en"} <= set(RECIPES)


# ----------------------------------------------------------------------------------------- datasets with only one split


@pytest.mark.parametrize("splits", [None, ONLY_TRAIN, {"train": "train"}])
def test_a_dataset_with_only_train_is_split_like_files(tmp_path: Path, splits: dict[str, str | None] | None) -> None:
    words = [chr(97 + i % 26) + chr(97 + i // 26) for i in range(60)]
    rows = [{"translation": {"de": f"satz {word}", "en": f"sentence {word}"}} for word in words]
    corpus = json_hub(tmp_path / "rows.jsonl", rows, splits=splits, dev_size=4, test_size=6, split_seed=3)
    corpus.prepare(tmp_path / "cache")
    same: dict[str, Any] = {"dev_size": 4, "test_size": 6, "split_seed": 3, "src_lang": "de", "tgt_lang": "en"}
    files = Files(train={"jsonl": str(tmp_path / "rows.jsonl")}, **same)
    assert corpus.load(tmp_path / "cache") == files.load(tmp_path)
    assert [note.partition(": ")[2] for note in corpus.notes] == [files.notes[-1].partition(": ")[2]]
    assert corpus.notes[0].startswith(
        "no dev or test split read: dev (4 pairs) and test (6 pairs) split off from train"
    )
    corpus.load(tmp_path / "cache")
    assert len(corpus.notes) == 1


def test_test_is_not_split_off_if_there_is_dev(tmp_path: Path) -> None:
    files = {name: json_lines(tmp_path / f"{name}.jsonl", TEN) for name in ("train", "validation")}
    corpus = Hub(
        path="json", data_files=files, splits={**ONLY_TRAIN, "dev": "validation"}, src_lang="de", tgt_lang="en"
    )
    corpus.prepare(tmp_path / "cache")
    assert {split: len(pairs) for split, pairs in corpus.load(tmp_path / "cache").items()} == {"train": 10, "dev": 10}
    assert corpus.notes == []


def test_a_split_of_another_name_is_not_split_off_from_train(tmp_path: Path) -> None:
    files = {name: json_lines(tmp_path / f"{name}.jsonl", TEN) for name in ("train", "valid")}
    corpus = Hub(path="json", data_files=files, src_lang="de", tgt_lang="en")
    told = r"data\.splits\.dev=validation: the dataset has train, valid \(data\.splits\.dev=null splits it off"
    with pytest.raises(UserError, match=told):
        corpus.prepare(tmp_path / "cache")


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("train", "validation"), "data.splits.test=test: the dataset has train, validation (.*null goes without it)"),
        (
            ("train", "test"),
            "data.splits.dev=validation: the dataset has train, test (.*null splits it off from train)",
        ),
        (("all",), "data.splits.train=train: the dataset has all$"),
    ],
)
def test_missing_splits_are_named_with_what_null_does(tmp_path: Path, names: tuple[str, ...], told: str) -> None:
    files = {name: json_lines(tmp_path / f"{name}.jsonl", TEN) for name in names}
    corpus = Hub(path="json", data_files=files, src_lang="de", tgt_lang="en")
    with pytest.raises(UserError, match=told.replace("(", r"\(").replace(")", r"\)")):
        corpus.prepare(tmp_path / "cache")


@pytest.mark.parametrize("file", ["README.md", ".huggingface.yaml"])
def test_a_local_dataset_opens_no_address(tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    as_parquet(folder / "train.parquet", TEN)
    card = "configs:\n- config_name: default\n  data_files:\n  - split: train\n    path: [{}]\n"
    card = f"---\n{card}---\n" if file == "README.md" else card
    corpus = Hub(path=str(folder), src_lang="de", tgt_lang="en", splits=ONLY_TRAIN)
    opened: list[Any] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *address, **_: opened.append(address))
    for path in ("https://example.org/x.parquet", "zip://x.parquet::http://example.org/x.zip"):
        (folder / file).write_text(card.format(path))
        with pytest.raises(UserError, match=r"set: its description names (https|zip)://.*: a local dataset opens no"):
            corpus.prepare(tmp_path / "cache")
    assert not opened
    (folder / file).write_text(card.format("train.parquet"))
    assert len(prepared(corpus, tmp_path / "cache")["train"]) == len(TEN)


def test_texts_that_look_like_json_are_read_back(tmp_path: Path) -> None:
    rows = [{"translation": {"de": f"Licht {i}", "en": json.dumps({"light": i})}} for i in range(10)]
    corpus = json_hub(tmp_path / "rows.jsonl", rows)
    assert prepared(corpus, tmp_path / "cache")["train"].tgt[0] == '{"light": 0}'


def test_a_file_is_not_sent_to_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    json_lines(tmp_path / "x.jsonl", TEN)
    (tmp_path / "name").write_bytes(b"x")
    for path in ("x.jsonl", "name", f"{tmp_path}/x.jsonl"):
        with pytest.raises(UserError, match=rf"data\.path={path}: .* type data=files data\.train\.file={path}$"):
            Hub(path=path, src_lang="de", tgt_lang="en")
    for path in ("y.jsonl", "y.csv.gz", "./set", "/no/set", "a/b/c"):
        with pytest.raises(UserError, match=rf"data\.path={path}: no such file or folder; .* data\.train\.file=FILE"):
            Hub(path=path, src_lang="de", tgt_lang="en")
    assert Hub(path="owner/set", src_lang="de", tgt_lang="en").path == "owner/set"
