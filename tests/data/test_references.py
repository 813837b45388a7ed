"""Tests of further references of dev and test: files of their own, columns, and alternatives in a file's units."""

import gzip
import os
from pathlib import Path
from typing import Any

import pytest

from diglot.data.corpus import Files
from diglot.data.mixed import Mixed
from diglot.data.readers.reading import Reader
from diglot.data.references import Referenced
from diglot.data.text import PairFiles, ParallelText, join_blocks, write_lines
from diglot.errors import UserError

PAIRS = ParallelText(["eins", "zwei", "drei"], ["one", "two", "three"])
SECOND, THIRD = ["1", "2", "3"], ["I", "II", "III"]


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Write two files whose lines correspond, and three further references, into the working directory."""
    monkeypatch.chdir(tmp_path)
    write_lines("t.de", PAIRS.src)
    write_lines("t.en", PAIRS.tgt)
    write_lines("ref.2.en", SECOND)
    Path("ref.3.en.gz").write_bytes(gzip.compress("I\r\nII\r\nIII".encode("utf-16")))
    return {"src": "t.de", "tgt": "t.en"}


def load(dev: dict[str, Any], **options: Any) -> ParallelText:
    """Return dev as it is read."""
    corpus = Files(train={}, dev=dev, **options)
    found = corpus.read_checked(Path())["dev"].load()
    assert join_blocks(corpus.given()["dev"].blocks(2)) == found
    return found


# -------------------------------------------------------------------------------------------------- files of references


@pytest.mark.parametrize("given", [["ref.2.en", "ref.3.en.gz"], "ref.*", ["t.e*", "ref.*"]])
def test_files_of_references_have_a_line_per_pair(text: dict[str, str], given: Any) -> None:
    assert load({**text, "references": given}).references == [PAIRS.tgt, SECOND, THIRD]


def test_dev_and_test_have_references_of_their_own_and_one_may_be_enough(text: dict[str, str]) -> None:
    further = {**text, "references": "ref.2.en", "reference_columns": None}
    for corpus in (
        Files(train=text, dev=further, test={**text, "references": None}),
        Mixed(corpora={"news": text}, dev=further, test=text),
    ):
        splits = corpus.load(Path())
        assert {split: pairs.references for split, pairs in splits.items()} == {
            "train": [PAIRS.tgt],
            "dev": [PAIRS.tgt, SECOND],
            "test": [PAIRS.tgt],
        }


def test_files_of_references_belong_to_all_files_of_a_split(text: dict[str, str]) -> None:
    write_lines("u.de", ["vier"])
    write_lines("u.en", ["four"])
    write_lines("all.en", [*SECOND, "4"])
    found = load({"src": ["t.de", "u.de"], "tgt": ["t.en", "u.en"], "references": "all.en"})
    assert found == ParallelText([*PAIRS.src, "vier"], [*PAIRS.tgt, "four"], ([*SECOND, "4"],))


def test_blank_lines_of_references_are_empty_references_and_are_told(text: dict[str, str]) -> None:
    write_lines("holes.en", ["1", "", " "])
    corpus = Files(train={}, dev={**text, "references": "holes.en"})
    assert corpus.load(Path())["dev"].more == (["1", "", " "],)
    assert corpus.notes == ["dev: holes.en: 2 of 3 lines are blank; each counts as an empty reference"]


@pytest.mark.parametrize(
    ("split", "node", "message"),
    [
        ("dev", {"references": "short.en"}, r"^data\.dev\.references=short\.en has 2 lines, t\.en has 3; the numbers"),
        ("test", {"references": "none.en"}, r"^none\.en: no such file$"),
        ("dev", {"references": ["none*.en"]}, r"^data\.dev\.references=none\*\.en: no such file$"),
        ("dev", {"references": "t.e*"}, r"^data\.dev\.references=t\.e\*: matches only the file of the first"),
        ("dev", {"references": "bad.en"}, r"^bad\.en, line 2: not UTF-8"),
        ("dev", {"references": "empty.en"}, r"^empty\.en: the file is empty$"),
        ("dev", {"references": "rows.json"}, r"^rows\.json: JSON, not lines of text"),
        ("dev", {"references": "side.sgm"}, r"^data\.dev\.references=side\.sgm: a test set .SGML., but t\.de has"),
        ("dev", {"references": "t.en"}, r"^data\.dev\.references=t\.en has the same content as t\.en$"),
        ("dev", {"references": "t.de"}, r"^data\.dev\.references=t\.de has the same content as t\.de$"),
        ("dev", {"references": ["ref.2.en", "./ref.2.en"]}, r"^data\.dev\.references=ref\.2\.en has the same content"),
        ("dev", {"references": "https://a.b/c.en"}, r"^data\.dev\.references=https://a\.b/c\.en: this is a URL"),
        ("dev", {"references": "pipe"}, r"^data\.dev\.references=pipe: a pipe can be read only once"),
        ("dev", {"references": 3}, r"^data\.dev\.references=3: must be a path$"),
        ("dev", {"reference_columns": [2]}, r"data\.dev\.src is given: type data\.dev\.references=FILE$"),
        ("dev", {"src": None, "tgt": None, "references": "ref.2.en"}, r"^data\.dev\.references: data\.dev\.src .*must"),
        ("train", {"references": "ref.2.en"}, r"^data\.train\.references: only dev and test have further references$"),
    ],
)  # fmt: skip
def test_invalid_references_are_refused(text: dict[str, str], split: str, node: dict[str, Any], message: str) -> None:
    write_lines("short.en", SECOND[:2])
    Path("bad.en").write_bytes(b"1\n\xff\n3\n")
    Path("empty.en").touch()
    write_lines("rows.json", ['{"en": "x"}'] * 3)
    Path("side.sgm").write_text(sgm("ref", {"a": [SECOND]}))
    os.mkfifo("pipe")
    splits = {"train": text, "dev": text, "test": text, split: {**text, **node}}
    with pytest.raises(UserError, match=message) as refused:
        Files(**splits).load(Path())
    assert "\n" not in str(refused.value)


def test_a_digest_depends_on_the_references(text: dict[str, str]) -> None:
    def digest(node: dict[str, Any]) -> str:
        return Files(train={}, dev=node).given()["dev"].digest()

    one, two = digest({**text, "references": "ref.2.en"}), digest({**text, "references": "ref.*"})
    assert len({digest(text), one, two}) == 3
    assert digest({**text, "references": None}) == digest(text) == PairFiles("dev", [("t.de", "t.en")]).digest()
    write_lines("ref.2.en", ["1", "2", "4"])
    assert digest({**text, "references": "ref.2.en"}) != one


# ------------------------------------------------------------------------------------------------ columns of references

ROWS = {
    "tsv": b"de\ten\ten2\ten3\neins\tone\t1\tI\nzwei\ttwo\t \tII\n",
    "csv": b'de,en,en2,en3\neins,one,1,I\nzwei,two,"",II\n',
    "jsonl": b'{"de": "eins", "en": "one", "en2": "1", "en3": "I"}\n'
    b'{"de": "zwei", "en": "two", "en2": null, "en3": "II"}\n',
}  # fmt: skip
OF_ROWS = ParallelText(["eins", "zwei"], ["one", "two"], (["1", None], ["I", "II"]))


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("key", ["file", "claimed"])
def test_columns_are_references(tmp_path: Path, kind: str, key: str) -> None:
    path = tmp_path / "rows"
    path.write_bytes(ROWS[kind])
    key = kind if key == "claimed" else key
    names = {"reference_columns": ["en2", "en3"]}
    assert load({key: str(path), **names}, columns=["de", "en"]) == OF_ROWS
    if key in ("file", "jsonl"):
        corpus = Files(train={}, dev={key: str(path), **names}, src_lang="de", tgt_lang="en")
        assert corpus.load(Path())["dev"] == OF_ROWS
        assert corpus.notes[0].endswith("source de, target en, further references en2, en3")
    if kind != "jsonl":
        path.write_bytes(ROWS[kind].split(b"\n", 1)[1])
        assert load({key: str(path), "reference_columns": [2, 3]}) == OF_ROWS
        assert load({key: str(path), "reference_columns": 3}).more == (["I", "II"],)
        assert load({key: str(path), "reference_columns": [[1, 3]]}).more == (["one I", "two II"],)


def test_columns_of_parquet_and_members_of_an_archive_are_references(tmp_path: Path) -> None:
    import zipfile

    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"de": "eins", "en": "one", "en2": "1"}, {"de": "zwei", "en": "two", "en2": None}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name in ("de", "en", "en2"):
            archive.writestr(f"a.{name}", "".join(f"{row[name] or ''}\n" for row in rows))
    for name in ("a.parquet", "a.zip"):
        node = {"file": str(tmp_path / name), "reference_columns": "en2"}
        assert load(node, columns=["de", "en"]) == ParallelText(["eins", "zwei"], ["one", "two"], (["1", None],))


@pytest.mark.parametrize(
    ("columns", "further", "message"),
    [
        (["de", "en"], [2], r"rows: reference_columns=\[2\]: source and target are given by name, de, en: give"),
        ([0, 1], ["en2"], r"rows: reference_columns=\['en2'\]: source and target are given by number: give"),
        (["de", "en"], ["fr"], r"rows: reference_columns=\['fr'\]: there is no 'fr'; it has de, en, en2, en3"),
        (["de", "en"], ["en"], r"rows: reference_columns=\['en'\]: en is already the source, the target or a ref"),
        ([0, 1], [2, 2], r"rows: reference_columns=\[2, 2\]: 2 is already the source, the target or a reference"),
        ([0, 1], [4], r"rows, line 1: 4 tab-separated column\(s\), 5 needed"),
        ([0, 1], [-1], r"^data\.dev\.reference_columns=\[-1\]: column numbers must be at least 0"),
        ([0, 1], [2, "en3"], r"^data\.dev\.reference_columns=\[2, 'en3'\]: must be numbers only, or names only"),
    ],
)
def test_invalid_columns_are_refused(tmp_path: Path, columns: Any, further: Any, message: str) -> None:
    (tmp_path / "rows").write_bytes(ROWS["tsv"])
    with pytest.raises(UserError, match=message) as refused:
        load({"tsv": str(tmp_path / "rows"), "reference_columns": further}, columns=columns)
    assert "\n" not in str(refused.value)


def test_columns_of_a_users_own_reader_are_refused() -> None:
    class Own(Reader):
        def pairs(self, path: str) -> Any:
            return []

    with pytest.raises(UserError, match=r"^data\.dev\.reference_columns has no effect: data\.reader yields the pairs"):
        Files(train={}, dev={"file": "x", "reference_columns": [2]}, reader=Own())


def test_files_and_columns_are_combined(tmp_path: Path) -> None:
    (tmp_path / "rows").write_bytes(ROWS["tsv"])
    write_lines(tmp_path / "more", ["a", "b"])
    node = {"tsv": str(tmp_path / "rows"), "reference_columns": ["en3"], "references": str(tmp_path / "more")}
    assert load(node, columns=["de", "en"]).more == (["I", "II"], ["a", "b"])


# --------------------------------------------------------------------------------------------------------- alternatives


def tmx(*units: list[tuple[str, str]], srclang: str = "de") -> str:
    tuv = '<tuv xml:lang="{}"><seg>{}</seg></tuv>'
    body = "".join(f"<tu>{''.join(tuv.format(*text) for text in unit)}</tu>\n" for unit in units)
    return f'<?xml version="1.0"?>\n<tmx version="1.4"><header srclang="{srclang}"/><body>\n{body}</body></tmx>'


def sgm(kind: str, documents: dict[str, list[list[str]]]) -> str:
    """Return a side of a test set: the texts of each document, as often as it has alternatives."""
    body = ""
    for document, versions in documents.items():
        for lines in versions:
            text = "".join(f'<seg id="{i}">{line}</seg>\n' for i, line in enumerate(lines, start=1))
            body += f'<doc docid="{document}">\n{text}</doc>\n'
    return f'<{kind}set setid="x" srclang="de">\n{body}</{kind}set>\n'


UNITS = [
    [("de", "eins"), ("en", "one"), ("en", "1")],
    [("en", "two"), ("de", "zwei"), ("de", "zwo")],
    [("de", "drei"), ("en", "three"), ("en", ""), ("EN", "3"), ("en", "III")],
]


def test_alternatives_of_a_unit_are_references_of_dev_and_not_of_train(tmp_path: Path) -> None:
    path = {"file": str(tmp_path / "a.tmx")}
    Path(path["file"]).write_text(tmx(*UNITS))
    found = Files(train=path, dev=path, test=path, src_lang="de", tgt_lang="en").load(tmp_path)
    assert found["train"] == PAIRS
    assert found["dev"] == found["test"] == ParallelText(PAIRS.src, PAIRS.tgt, (["1", None, "III"], [None, None, "3"]))


def test_references_that_begin_late_in_a_file_are_not_shifted(tmp_path: Path) -> None:
    path = tmp_path / "a.tmx"
    path.write_text(tmx(*[[("de", "x"), ("en", "y")]] * 5, UNITS[0], [("de", "x"), ("en", "y")]))
    pairs = Files(train={}, dev={"file": str(path)}).given()["dev"]
    assert join_blocks(pairs.blocks(2)).more == ([None] * 5 + ["1", None],)


def test_another_variant_of_the_language_is_a_reference_if_it_is_typed(tmp_path: Path) -> None:
    path = tmp_path / "a.tmx"
    path.write_text(
        tmx([("en", "one"), ("de-DE", "eins"), ("de-AT", "oans")], [("en", "two"), ("de-DE", "zwei")], srclang="en")
    )
    node = {"file": str(path), "reference_columns": "de-AT"}
    found = load(node, src_lang="en", tgt_lang="de-DE")
    assert found == ParallelText(["one", "two"], ["eins", "zwei"], (["oans", None],))


def test_all_references_of_a_test_set_in_xml_are_read(tmp_path: Path) -> None:
    seg = '<seg id="1">{}</seg>'
    one = f"<src lang='de'>{seg.format('eins')}</src><ref lang='en'>{seg.format('one')}</ref>"
    path = tmp_path / "a.xml"
    two = f"{one}<ref lang='en'>{seg.format('1')}</ref>"
    path.write_text(f"<dataset id='x'><doc id='a'>{two}</doc><doc id='b'>{one}</doc></dataset>")
    assert load({"file": str(path)}) == ParallelText(["eins"] * 2, ["one"] * 2, (["1", None],))


def test_all_references_of_a_test_set_in_sgml_are_read_from_one_file_and_from_several(tmp_path: Path) -> None:
    contents = {
        "s.de.sgm": sgm("src", {"a": [["eins", "zwei"]], "b": [["drei"]]}),
        "r.en.sgm": sgm("ref", {"b": [["three"]], "a": [["one", "two"], ["1", "2"]]}),
        "more.sgm": sgm("ref", {"a": [["I", "II"]], "b": [["III"]]}),
        "fewer.sgm": sgm("ref", {"a": [["I", "II"]]}),
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    write_lines(tmp_path / "lines", ["x", "y", "z"])
    path = {name: str(tmp_path / name) for name in [*contents, "lines"]}
    node = {"src": path["s.de.sgm"], "tgt": path["r.en.sgm"]}
    assert load(node) == ParallelText(PAIRS.src, PAIRS.tgt, (["1", "2", None],))
    further = {**node, "references": [path["more.sgm"], path["lines"]]}
    assert load(further).more == (["1", "2", None], THIRD, ["x", "y", "z"])
    with pytest.raises(UserError, match=r"fewer\.sgm: document b, segment 1 is missing, but \S+s\.de\.sgm has it"):
        load({**node, "references": path["fewer.sgm"]})
    assert Files(train=node).given()["train"].load() == PAIRS


def test_a_text_keeps_its_references_in_parts_and_in_its_digest() -> None:
    text = ParallelText(["a", "b", "c"], ["1", "2", "3"], (["I", None, ""], ["x", "y", "z"]))
    assert text.reference_lines == ["1", "2", "3", "I", "", "x", "y", "z"]
    assert text.select([2, 1]) == ParallelText(["c", "b"], ["3", "2"], (["", None], ["z", "y"]))
    assert join_blocks(text.blocks(2)) == text
    others = [ParallelText(text.src, text.tgt, more) for more in ((), text.more[:1], (["I", "", None], text.more[1]))]
    assert len({each.digest() for each in [text, *others]}) == 4
    with pytest.raises(ValueError, match="3 source sentences but 2 target"):
        ParallelText(text.src, text.tgt, (["I", "II"],))


def test_a_file_of_references_in_another_format_is_rejected_with_what_to_do(tmp_path: Path) -> None:
    for name in ("src", "tgt"):
        (tmp_path / name).write_text("a\nb\n")
    (tmp_path / "more").write_text('<?xml version="1.0"?>\n<tmx version="1.4">\n')
    corpus = Referenced("dev", [(str(tmp_path / "src"), str(tmp_path / "tgt"))], None, (), [str(tmp_path / "more")])
    with pytest.raises(UserError, match="extract its sentences, one per line"):
        corpus.load()
