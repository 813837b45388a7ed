"""Tests of reading one file that holds both sides, whose content decides the format."""

import bz2
import gzip
import json
import lzma
import os
import re
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from diglot.data.corpus import Files
from diglot.data.readers.formats import HEAD
from diglot.data.readers.opening import utf_16_of, zstd
from diglot.data.readers.reading import Reader, detect_format
from diglot.data.readers.zip_pair import ZipPair
from diglot.data.text import ParallelText
from diglot.errors import UserError

PAIRS = [("eins", "one"), ("zwei", "two"), ("", "three"), ('"vier"', "four, 4; IV")]
TEXT = ParallelText([src for src, _ in PAIRS], [tgt for _, tgt in PAIRS])
LANGUAGES = {"src_lang": "de", "tgt_lang": "en"}


def as_json_lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def as_zip(**members: bytes) -> bytes:
    import io

    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)  # of a fixed date
    return stream.getvalue()


def as_parquet(rows: list[dict[str, Any]]) -> bytes:
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    stream = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), stream, row_group_size=3)
    return stream.getvalue()


def read(path: Path, content: bytes, key: str = "file", **options: Any) -> ParallelText:
    """Return the pairs of a file with a content."""
    path.write_bytes(content)
    return Files(train={key: str(path)}, **options).given()["train"].load()


FLAT = [{"id": i, "de": src, "en": tgt} for i, (src, tgt) in enumerate(PAIRS)]
NESTED = [{"id": row["id"], "translation": {"de": row["de"], "en": row["en"]}} for row in FLAT]
CONTENTS = {
    "JSON Lines": as_json_lines(FLAT),
    "JSON Lines of the Hub": as_json_lines(NESTED),
    "a JSON array": json.dumps(FLAT, indent=1).encode(),
    "a JSON array in one line": json.dumps(NESTED).encode(),
    "Parquet": as_parquet(FLAT),
    "Parquet of the Hub": as_parquet(NESTED),
    "tabs": "".join(f"{src}\t{tgt}\n" for src, tgt in [("de", "en"), *PAIRS]).encode(),
    "commas": b'de,en\neins,one\nzwei,two\n,three\n"""vier""","four, 4; IV"\n',
    "semicolons": b'de;en\neins;one\nzwei;two\n;three\n"""vier""";"four, 4; IV"\n',
    "ZIP": as_zip(**{"x/T.de-en.de": b"eins\nzwei\n\n\"vier\"\n", "x/T.de-en.en": b"one\ntwo\nthree\nfour, 4; IV\n",
                     "README": b"x", "x/T.de-en.ids": b"1\n", "T.xml": b"<x/>"}),
}  # fmt: skip


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd.compress, lzma.compress, bz2.compress, "zip", "utf-16"])
@pytest.mark.parametrize("form", CONTENTS)
def test_the_content_of_a_file_decides_how_it_is_read(tmp_path: Path, form: str, pack: Any) -> None:
    content = CONTENTS[form]
    if form == "ZIP" and pack is not bytes:
        return
    if pack == "utf-16":
        content = content if "Parquet" in form else content.decode().encode("utf-16")
    else:
        content = as_zip(LICENSE=b"x", rows=content) if pack == "zip" else pack(content)
    assert read(tmp_path / "text.de", content, **LANGUAGES) == TEXT


QUOTED = {
    "all cells": b'"de"\t"en"\n"eins"\t"one"\n"zwei ""2"""\t"two"\n',
    "a number": b'"de"\t"en"\t"id"\r\n"eins"\t"one"\t1\r\n"zwei ""2"""\t"two"\t2\r\n',
    "cells of several lines": b'"de"\t"en"\n"eins"\t"one"\n"zwei\n""2"""\t"two"\n',
}


@pytest.mark.parametrize("content", QUOTED.values(), ids=QUOTED)
def test_tabs_between_quoted_cells_are_read_as_csv(tmp_path: Path, content: bytes) -> None:
    wanted = ParallelText(["eins", 'zwei "2"'], ["one", "two"])
    assert read(tmp_path / "a", content, **LANGUAGES) == wanted
    row, at_the_end = b'"eins"\t"one"\n', b'"zwei' + b"\nx" * 500 + b'"\t"two"\n'
    many = row * ((HEAD - 500) // len(row)) + at_the_end  # the first bytes end inside a cell
    assert detect_format(_written(tmp_path / "many", many)).name == "CSV"


@pytest.mark.parametrize(
    "row", [b'"eins"\tone\n', b'"eins" zwei\t"one"\n', b"1\t2\n", b'"eins"\t"one" two\n', b'"eins"\t"one"\t"x"\n']
)
def test_quotes_around_some_cells_are_text(tmp_path: Path, row: bytes) -> None:
    content = b'"null"\t"zero"\n' + row if row[:1] == b'"' else row
    assert detect_format(_written(tmp_path / "a", content)).name == "tab-separated columns"


def test_quoted_tabs_have_a_digest_and_a_note_of_their_own(tmp_path: Path) -> None:
    path = _written(tmp_path / "a", QUOTED["all cells"])
    files = Files(train={"file": path}, **LANGUAGES).given()["train"]
    assert files.options[-1] == "quoted"  # else files that an earlier version prepared, with the quotes, would be used
    corpus = Files(train={"tsv": path}, dev={"tsv": path}, test={"tsv": path}, src_lang="de", tgt_lang="en")
    assert corpus.read(tmp_path)["train"].load().src[1] == '"eins"'
    assert "whose quotes are text (csv instead of tsv takes them off)" in corpus.notes[0]


def _written(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


@pytest.mark.parametrize("form", [form for form in CONTENTS if form != "ZIP"])
def test_columns_are_given_by_name(tmp_path: Path, form: str) -> None:
    assert read(tmp_path / "a", CONTENTS[form], columns=["en", "de"]) == ParallelText(TEXT.tgt, TEXT.src)
    with pytest.raises(UserError, match=r"a: no column 'fr'.* de, en"):
        read(tmp_path / "a", CONTENTS[form], columns=["fr", "de"])


def test_several_columns_are_joined_to_a_side(tmp_path: Path) -> None:
    rows = [("gehen", "V;PST", "ging"), ("Haus", "", "Häuser")]
    wanted = ParallelText(["gehen V;PST", "Haus"], ["ging", "Häuser"])
    names = ["lemma", "features", "form"]
    objects = [dict(zip(names, row)) for row in rows]
    tabs = "".join("\t".join(row) + "\n" for row in rows).encode()
    by_name = {"columns": [["lemma", "features"], "form"]}
    assert read(tmp_path / "a", as_json_lines(objects), **by_name) == wanted
    assert read(tmp_path / "a", as_parquet(objects), **by_name) == wanted
    for key in ("file", "tsv"):
        assert read(tmp_path / "a", b"lemma\tfeatures\tform\n" + tabs, key, **by_name) == wanted
        assert read(tmp_path / "a", tabs, key, columns=[[0, 1], 2]) == wanted
    commas = b"lemma,features,form\ngehen,V;PST,ging\nHaus,,H\xc3\xa4user\n"
    assert read(tmp_path / "a", commas, "csv", **by_name) == wanted


@pytest.mark.parametrize("columns", [[["a"], "a"], [["a", 1], "b"], [[], "a"], [[["a"]], "b"], [[0, -1], 1]])
def test_wrong_columns_are_refused(columns: list[Any]) -> None:
    with pytest.raises(UserError, match=r"^data\.columns="):
        Files(train={"tsv": "x"}, columns=columns)


def test_a_digest_depends_on_what_is_read_and_equals_that_of_earlier_versions(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"a\tb\tc\n")

    def digest(key: str = "tsv", **options: Any) -> str:
        return Files(train={key: str(path)}, **options).given()["train"].digest()[:12]

    assert digest() == "082fb20a228e"
    assert digest(columns=[1, 0]) == "071dbc07f62b"
    assert digest("csv") == "3431667e6d4a"
    ways = [digest("tsv", columns=columns) for columns in ([0, 1], [0, 2], [[0, 1], 2], [0, [1, 2]])]
    ways += [digest("file"), digest("file", src_lang="de"), digest("csv")]
    assert len(set(ways)) == len(ways)


# --------------------------------------------------------------------------------------------------------------- units

TMX_UNIT = "<tu>{}</tu>\n"
TUV = '<tuv xml:lang="{}"><seg>{}</seg></tuv>'


def tmx(*units: dict[str, str], srclang: str = "*all*") -> bytes:
    body = "".join(TMX_UNIT.format("".join(TUV.format(*text) for text in unit.items())) for unit in units)
    return (
        f'<?xml version="1.0"?>\n<tmx version="1.4"><header srclang="{srclang}"/><body>\n{body}</body></tmx>'.encode()
    )


TWO = [{"en": "one", "de-DE": "eins"}, {"de-DE": "zwei", "en": "two"}]
XLIFF = (
    b'<?xml version="1.0"?><xliff version="1.2"><file source-language="de" target-language="en"><body>'
    b'<trans-unit id="1"><source>eins</source><target>one</target></trans-unit>'
    b'<trans-unit id="2"><source>zwei</source><target>two</target></trans-unit></body></file></xliff>'
)
PO = b'# x\nmsgid ""\nmsgstr "Language: en\\n"\n\nmsgid "eins"\nmsgstr "one"\n\nmsgid "zwei"\nmsgstr "two"\n'
WMT = (
    b'<?xml version="1.0"?><dataset id="x"><doc id="a" origlang="de"><src lang="de"><p><seg id="1">eins</seg>'
    b'<seg id="2">zwei</seg></p></src><ref lang="en"><p><seg id="1">one</seg><seg id="2">two</seg></p></ref>'
    b"</doc></dataset>"
)
IN_ORDER = ParallelText(["eins", "zwei"], ["one", "two"])


@pytest.mark.parametrize("given", [{}, {"src_lang": "de", "tgt_lang": "en"}, {"tgt_lang": "en"}, {"src_lang": "de"}])
@pytest.mark.parametrize("content", [tmx(*TWO, srclang="de-DE"), XLIFF, PO, WMT])
def test_units_have_the_languages_that_are_given_or_declared(tmp_path: Path, content: bytes, given: dict) -> None:
    assert read(tmp_path / "a.txt", content, **given) == IN_ORDER
    assert read(tmp_path / "a.txt", as_zip(a=content), **given) == IN_ORDER
    if content is not PO:  # the source of a catalogue has no code
        reversed_ = ParallelText(IN_ORDER.tgt, IN_ORDER.src)
        assert read(tmp_path / "a.txt", content, src_lang="en", tgt_lang="de") == reversed_


def test_an_ambiguous_choice_of_languages_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a: which are .* languages en, de-DE: type, .* data\.src_lang=en data\.tgt_"):
        read(tmp_path / "a", tmx(*TWO))
    three = [*TWO, {"fr": "trois", "en": "three"}, {"fr": "quatre", "it": "quattro"}]
    with pytest.raises(UserError, match=r"a: which are .* languages en, de-DE, fr, it: type"):
        read(tmp_path / "a", tmx(*three, srclang="en"))
    found = read(tmp_path / "a", tmx(*three), src_lang="en", tgt_lang="fr")
    assert found == ParallelText(["one", "two", "three", ""], ["", "", "trois", "quatre"])
    with pytest.raises(UserError, match=r"de may be de-DE or de-AT: type the one"):
        read(tmp_path / "a", tmx(*TWO, {"de-AT": "drei"}), src_lang="en", tgt_lang="de")
    late = [*TWO * 600, {"de-AT": "drei", "en": "three"}]
    with pytest.raises(UserError, match=r"a, line \d+ has de-AT, but earlier units have de-DE: type the one"):
        read(tmp_path / "a", tmx(*late), src_lang="en", tgt_lang="de")
    assert len(read(tmp_path / "a", tmx(*TWO), src_lang="en", tgt_lang="de")) == 2


def test_a_test_set_in_two_files_is_paired_by_ids(tmp_path: Path) -> None:
    seg = '<{0}set setid="x" srclang="de"><doc docid="d"><p>\n{1}</p></doc></{0}set>\n'
    for name, kind, texts in (("s.de.sgm", "src", {1: "eins", 2: "zwei"}), ("r.en.sgm", "ref", {2: "two", 1: "one"})):
        body = "".join(f'<seg id="{i}">{text}</seg>\n' for i, text in texts.items())
        (tmp_path / name).write_text(seg.format(kind, body))
    paths = {"src": str(tmp_path / "s.de.sgm"), "tgt": str(tmp_path / "r.en.sgm")}
    assert Files(train={}, test=paths).given()["test"].load() == IN_ORDER
    with pytest.raises(
        UserError, match=r"this SGML file is one side of a test set: type data\.test\.src=SOURCE data\.test\.tgt="
    ):
        Files(train={}, test={"file": paths["src"]})


# ----------------------------------------------------------------------------------------------------------- languages


@pytest.mark.parametrize(
    ("names", "given", "columns"),
    [
        (["de-DE", "en"], ("de", "en"), [0, 1]),
        (["de-AT", "de", "en_GB"], ("de", "en-gb"), [1, 2]),
        (["en", "de-DE", "fr"], ("deu", "fra"), [1, 2]),
        (["id", "de", "en"], ("en", "de"), [2, 1]),
        (["source", "target"], (None, None), [0, 1]),
        (["target", "source"], ("de", "en"), [1, 0]),
        (["number", "de", "en"], ("de", None), [1, 2]),
        (["number", "de", "en"], (None, "de"), [2, 1]),
    ],
)
def test_languages_select_columns(tmp_path: Path, names: list[str], given: tuple, columns: list[int]) -> None:
    rows = [names, [f"0{name}" for name in names], [f"1{name}" for name in names]]
    src, tgt = ([row[column] for row in rows[1:]] for column in columns)
    contents = [
        "".join("\t".join(row) + "\n" for row in rows).encode(),
        as_json_lines([dict(zip(names, row)) for row in rows[1:]]),
    ]
    for content in contents:
        options = dict(zip(("src_lang", "tgt_lang"), given))
        assert read(tmp_path / "a", content, **options) == ParallelText(src, tgt)


@pytest.mark.parametrize(
    ("names", "given", "message"),
    [
        (["de-DE", "de-AT", "en"], ("de", "en"), r"a: de may be de-DE or de-AT: type the one"),
        (["de", "en"], ("de", "fr"), r"^data\.tgt_lang=fr: .*a has de, en$"),
        (
            ["de", "en"],
            (None, None),
            r"a: which are .* columns de, en: type, .*=de data\.tgt_lang=en or ",
        ),
        (["de", "en", "fr"], ("de", None), r"a: which are source and target\? .* de, en, fr"),
        (["de", "en"], ("de", "deu"), r"both are de in "),
    ],
)
def test_languages_are_not_guessed(tmp_path: Path, names: list[str], given: tuple, message: str) -> None:
    for content in (as_json_lines([dict.fromkeys(names, "x")]), "\t".join(names).encode() + b"\nx\ty\tz\n"):
        with pytest.raises(UserError, match=message) as refused:
            read(tmp_path / "a", content, **dict(zip(("src_lang", "tgt_lang"), given)))
        assert "\n" not in str(refused.value)


def test_a_first_row_of_sentences_is_a_pair(tmp_path: Path) -> None:
    content = b"ein Satz\ta sentence\nnoch einer\tanother\n"
    for options in ({}, LANGUAGES):
        assert read(tmp_path / "a", content, **options).src == ["ein Satz", "noch einer"]


def test_the_detected_format_is_noted_and_determines_the_languages(tmp_path: Path) -> None:
    dev = tmp_path / "dev.csv"
    dev.write_bytes(b"a;b\nc;d\n")
    (tmp_path / "train").write_bytes(CONTENTS["JSON Lines"])
    corpus = Files(
        train={"jsonl": str(tmp_path / "train")}, dev={"csv": str(dev)}, test={"tsv": str(dev)}, columns=["de", "en"]
    )
    assert (corpus.src_lang, corpus.tgt_lang) == ("de", "en")
    corpus = Files(train={"jsonl": str(tmp_path / "train")}, **LANGUAGES)
    assert [*corpus.given()] == ["train"]
    corpus = Files(train={"csv": str(dev)}, dev={"csv": str(dev)}, test={"file": str(dev)})
    corpus.read(tmp_path)
    assert corpus.notes == [
        f"train: {dev} is read as CSV separated by semicolons",
        f"dev: {dev} is read as CSV separated by semicolons",
        f"test: {dev} is read as CSV separated by semicolons: source 0, target 1",
    ]


# ------------------------------------------------------------------------------------------------------- invalid files


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "a: the file is empty"),
        (b"a sentence\nanother\n", r"a: not in a known format that holds both sides .*, type data\.train\.src="),
        (b"%PDF-1.4 \xff\n", r"a: (a PDF|not in a known format)"),
        (b'{"de": "a", "en": "b"}\n{"de": 3, "en": "b"}\n', "a, line 2: a sentence has type int, not text: 3"),
        (b'{"de": "a", "en": "b"}\n[1]\n', "a, line 2: a JSON list; each line must be a JSON object"),
        (b'{"de": "a", "en": "b"}\n{"de"\n', "a, line 2: not valid JSON"),
        (b'{"de": "a", "en": "\\ud800"}\n', "a, line 1: a sentence contains a lone surrogate"),
        (b'[{"de": "a", "en": "b"},\n\n{"de": "c", "en": 4}]', "a, line 3: a sentence has type int, not text: 4"),
        (b'[{"de": "a", "en": "b"},\n3]', "a, line 2: a JSON int; each item of the array must be a JSON object"),
        (b'[{"de": "a", "en": "b"},\n', "a, line 2: the JSON array has no end"),
        (b'[{"de": "a", "en": "b"}\n{"de": "a"}]', "a, line 2: not valid JSON .no comma"),
        (b'[{"de": "a", "en": "b"},\n{"de": "a" "en": "b"}]', "a, line 2: not valid JSON .Expecting ',' delimiter"),
        (b'[{"de": "a", "en": "b"},\n{"de": "a\n', "a, line 2: not valid JSON"),
        (b'[{"de": "a", "en": "b"}]\nmore', "a, line 2: text after the end of the JSON array"),
        (b'[{"de": "a", "en": "b"},\n{"de": "\xff"}]', "a, at or after line 1: not UTF-8"),
        (CONTENTS["Parquet"][:-9], "a: the Parquet file is damaged"),
        (as_parquet([{"de": 1, "en": "b"}]), r"data\.src_lang=de: \S+a has en"),
        (b"a\tb\nc\td\ne\n", "a, line 3: 1 tab-separated column"),
        (as_zip(**{"a.de": b"x\n", "a.en": b"x\ny\n"}), r"a: a\.de has 1 lines and a\.en has 2 lines; both must"),
        (as_zip(**{"train.de": b"x", "train.en": b"y", "dev.de": b"x"}), r"a: files with the same extension: train"),
        (as_zip(**{"../../b.de": b"x\n", "/c.en": b"x\ny\n"}), r"a: \.\./\.\./b\.de has 1 lines"),
        (as_zip(**{"b.zip": as_zip(c=b"x")}), r"a: its member b\.zip is a ZIP archive: unpack it"),
        (as_zip(b=b"x" * 17_000_000), "a: its member b would expand from [0-9,]+ to 17,000,000 bytes"),
        (as_zip(b=b"x")[:-9], "a: a ZIP archive that cannot be read"),
        (as_zip(), r"a: (not in a known format|a ZIP archive)"),
    ],
)  # fmt: skip
def test_invalid_files_are_refused_in_a_line_that_names_them(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(UserError) as refused:
        read(tmp_path / "a", content, **LANGUAGES)
    assert re.search(message, str(refused.value)), refused.value
    assert "\n" not in str(refused.value)


def test_an_encrypted_member_is_refused(tmp_path: Path) -> None:
    content = bytearray(as_zip(b=b"x"))
    for start in (content.index(b"PK\x03\x04") + 6, content.index(b"PK\x01\x02") + 8):
        content[start] |= 1
    with pytest.raises(UserError, match="a: its member b is encrypted: unpack it"):
        read(tmp_path / "a", bytes(content))


def test_nothing_of_an_archive_is_unpacked_to_a_file(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    members = {"../b.de": b"x\n", f"{tmp_path}/c.en": b"y\n"}
    assert read(folder / "a", as_zip(**members), **LANGUAGES) == ParallelText(["x"], ["y"])
    assert [*tmp_path.iterdir()] == [folder]
    assert [*folder.iterdir()] == [folder / "a"]


@pytest.mark.parametrize("form", ["tabs", "commas", "JSON Lines", "Parquet", "ZIP"])
def test_equal_sides_in_one_file_are_refused_unless_the_languages_are_equal(tmp_path: Path, form: str) -> None:
    same = [{"de": "a", "en": "a"}, {"de": "", "en": ""}]
    contents = {
        "tabs": b"de\ten\na\ta\n\t\n",
        "commas": b"de,en\na,a\n,\n",
        "JSON Lines": as_json_lines(same),
        "Parquet": as_parquet(same),
        "ZIP": as_zip(**{"x.de": b"a\n\n", "x.en": b"a\n\n"}),
    }
    (tmp_path / "a").write_bytes(contents[form])
    (tmp_path / "dev").write_bytes(b"a\tb\n")
    paths = {"train": {"file": str(tmp_path / "a")}, "dev": {"tsv": str(tmp_path / "dev")}}
    told = r"^data\.train: source and target of \S+a have the same content; .* data\.src_lang=CODE"
    with pytest.raises(UserError, match=told):
        Files(**paths, test=paths["dev"], **LANGUAGES).read(tmp_path)
    if form in ("tabs", "commas", "JSON Lines", "Parquet"):
        with pytest.raises(UserError, match="have the same content"):
            Files(**paths, test=paths["train"], src_lang="de").read(tmp_path)
    paths["train"] = paths["dev"]
    Files(**paths, test=paths["dev"], **LANGUAGES).read(tmp_path)


def test_one_file_is_split_like_two(tmp_path: Path) -> None:
    rows = [
        (f"satz {chr(97 + i % 26)}{chr(97 + i // 26)}", f"wort {chr(97 + i % 26)}{chr(97 + i // 26)}")
        for i in range(60)
    ]
    for side, name in enumerate(("t.de", "t.en")):
        (tmp_path / name).write_text("".join(row[side] + "\n" for row in rows))
    (tmp_path / "t.jsonl").write_bytes(as_json_lines([{"de": src, "en": tgt} for src, tgt in rows]))
    two = Files(train={"src": str(tmp_path / "t.de"), "tgt": str(tmp_path / "t.en")}, dev_size=4, test_size=6)
    one = Files(train={"file": str(tmp_path / "t.jsonl")}, dev_size=4, test_size=6, **LANGUAGES)
    assert one.load(tmp_path) == two.load(tmp_path)
    assert one.notes[1:] == two.notes


# --------------------------------------------------------------------------------------------------- the user's reader


class Own(Reader):
    """A reader that yields what it is given."""

    def __init__(self, *found: Any) -> None:
        self.found = found

    def pairs(self, path: str) -> Any:
        for each in self.found:
            if isinstance(each, Exception):
                raise each
            yield each


def test_a_users_own_reader_is_used_for_files(tmp_path: Path) -> None:
    assert read(tmp_path / "a", b"any", reader=Own(("a", "b"), ["c", "d"])) == ParallelText(["a", "c"], ["b", "d"])
    digests = {Files(train={"file": str(tmp_path / "a")}, reader=Own(n)).given()["train"].digest() for n in (1, 2)}
    assert len(digests) == 2


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([("a", "b"), "ab"], r"pair 2 is str 'ab'; it must be two lines of text"),
        ([("a",)], r"pair 1 is tuple "),
        ([("a", None)], r"pair 1 is a pair with NoneType 'None'"),
        ([("a", "b\nc")], r"pair 1 is a pair with a line break inside a side"),
        ([("a", "b"), KeyError("x\ny")], r", after 1 pairs: KeyError: "),
        ([UserError("a, line 7: no")], r"^a, line 7: no$"),
        ([], r"a: the file has no pairs"),
    ],
)
def test_what_a_users_own_reader_yields_is_checked(tmp_path: Path, found: list[Any], message: str) -> None:
    with pytest.raises(UserError) as refused:
        read(tmp_path / "a", b"any", reader=Own(*found))
    assert re.search(message, str(refused.value)), refused.value
    assert "\n" not in str(refused.value)


def test_the_extension_does_not_determine_the_format(tmp_path: Path) -> None:
    for name, form in (("a.csv", "JSON Lines"), ("a.parquet", "tabs"), ("a.json", "Parquet")):
        (tmp_path / name).write_bytes(CONTENTS[form])
    names = [type(detect_format(str(tmp_path / name))).__name__ for name in ("a.csv", "a.parquet", "a.json")]
    assert names == ["Json", "Tsv", "Parquet"]


@pytest.mark.parametrize(
    "head",
    [b"<!-- -->" * 40, b"<?a ?>" * 8000, b" " * 60000, b'<!DOCTYPE a "[">' * 3000, b'""\n' * 9000, b"#\n" * 9000],
)
def test_a_file_in_no_format_is_refused_in_linear_time(tmp_path: Path, head: bytes) -> None:
    start = time.process_time()
    with pytest.raises(UserError, match="a: not in a known format"):
        read(tmp_path / "a", head + b"<x>")
    assert time.process_time() - start < 3


def test_a_doctype_with_declarations_is_refused_as_xml(tmp_path: Path) -> None:
    content = tmx(*TWO).replace(b"<tmx", b'<!DOCTYPE tmx [\n<!ENTITY a SYSTEM "/etc/passwd">\n]>\n<tmx')
    with pytest.raises(UserError, match=r"a, line \d: the DOCTYPE contains declarations"):
        read(tmp_path / "a", content, **LANGUAGES)


def test_a_variant_of_a_language_that_is_typed_in_full_is_taken_alone(tmp_path: Path) -> None:
    units = [{"en": "one", "de-DE": "eins", "de-AT": "oans"}, {"en": "two", "de-AT": "zwoa", "de-DE": "zwei"}]
    for content in (tmx(*units), tmx(units[0], *[{"en": "x", "de-DE": "y"}] * 1200, units[1])):
        found = read(tmp_path / "a", content, src_lang="en", tgt_lang="de_de")
        assert (found.tgt[0], found.tgt[-1]) == ("eins", "zwei")
        assert read(tmp_path / "a", content, src_lang="de-AT", tgt_lang="en").src[0] == "oans"


def test_spellings_of_a_language_are_one_language(tmp_path: Path) -> None:
    units = [{"EN-US": "one", "de": "eins"}, {"en-US": "two", "DE": "zwei"}, {"en_us": "three", "de": "drei"}]
    for given in ({}, {"src_lang": "en", "tgt_lang": "de"}, {"src_lang": "en-us", "tgt_lang": "de"}):
        assert read(tmp_path / "a", tmx(*units, srclang="en-US"), **given) == ParallelText(
            ["one", "two", "three"], ["eins", "zwei", "drei"]
        )


def test_languages_cannot_be_joined(tmp_path: Path) -> None:
    for code, content in (("de-DE", tmx(*TWO)), ("de", CONTENTS["ZIP"])):
        with pytest.raises(UserError, match=r"a: languages cannot be joined; it has .*de"):
            read(tmp_path / "a", content, columns=[[code, "en"], code])


def test_files_of_the_other_direction_are_refused(tmp_path: Path) -> None:
    names = {"there": tmx(TWO[0], srclang="en"), "back": tmx(TWO[1], srclang="de"), "x": CONTENTS["JSON Lines"]}
    names |= {"t.de": b"eins\nzwei\n", "t.en": b"one\ntwo\n", "d.de": b"drei\n", "d.en": b"three\n"}
    path = {name: str(tmp_path / name) for name in names}
    for name, content in names.items():
        (tmp_path / name).write_bytes(content)
    lines = {"src": path["t.de"], "tgt": path["t.en"]}

    def corpus(train: Any, dev: Any, **languages: str) -> Any:
        return Files(train=train, dev=dev, test=dev, **languages).read(tmp_path)

    both, there = {"file": [path["there"], path["back"]]}, {"file": path["there"]}
    with pytest.raises(
        UserError, match=r"^data\.train: .*back is de-DE-en, but .* en-de-DE .*: type data\.src_lang=en"
    ):
        corpus(both, there)
    with pytest.raises(UserError, match=r"^data\.dev: .*there is en-de-DE, but .* de-en .*type data\.src_lang=de data"):
        corpus(lines, there)
    with pytest.raises(UserError, match=r"^data\.dev: .*d\.en and .*d\.de are en-de, but .*: swap data\.dev\.src and"):
        corpus(lines, {"src": path["d.en"], "tgt": path["d.de"]})
    read_dev = corpus(lines, there, src_lang="de", tgt_lang="en")["dev"].load()
    assert read_dev == ParallelText(["eins"], ["one"])
    assert corpus(both, there, src_lang="en", tgt_lang="de")["train"].load().src == ["one", "two"]
    assert len(corpus(lines, {"src": path["d.de"], "tgt": path["d.en"]})["dev"].load()) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"sep=;\nen;de\none;eins\n",
        b'"sep=;"\r\nen;de\r\none;eins\r\n',
        b"sep=,\nen,de\none,eins\n",
        b"sep=\t\nen\tde\none\teins\n",
        b"\nen,de\none,eins\n",
        b"\n;\nen;de\none;eins\n",
        b"\nen\tde\none\teins\n",
        b"en, de\none,eins\n",
        b"en \tde \none\teins\n",
    ],
)
def test_names_of_columns_are_found_below_blank_rows_and_a_declared_separator(tmp_path: Path, content: bytes) -> None:
    assert read(tmp_path / "a", content, **LANGUAGES) == ParallelText(["eins"], ["one"])
    assert read(tmp_path / "a", content, columns=["de", "en"]) == ParallelText(["eins"], ["one"])
    if b";" in content and b"sep=" in content:
        assert read(tmp_path / "a", content, "csv") == ParallelText(["en", "one"], ["de", "eins"])


def as_tar(content: bytes) -> bytes:
    import io
    import tarfile

    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        info = tarfile.TarInfo("a.tsv")
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (as_tar(b"eins\tone\n" * 500), "a: a tar archive, not text: unpack it"),
        (gzip.compress(as_tar(b"eins\tone\n" * 500)), "a: a tar archive, not text: unpack it"),
        (b'[["a", "b"], ["c", "d"]]', "a, line 1: a JSON list; each item of the array must be a JSON object"),
        (b'["a", "b"]\n["c", "d"]\n', "a, line 1: a JSON str; each item of the array must be a JSON object"),
        (b"{'de': 'a', 'en': 'b'}\n", "a, line 1: not valid JSON; each line must be a JSON object"),
        (b"[\n]", "a: the JSON array is empty"),
        (gzip.compress(b'{"de": "a", "en": "b"}\n{"de": "' + b"a" * 2**25, 1), "a, line 2: more than 16,777,216 bytes"),
        (gzip.compress(b"a\tb\nc\t" + b"d" * 2**25, 1), "a, line 2: more than 16,777,216 bytes in one line"),
    ],
)
def test_files_that_do_not_hold_both_sides_are_refused_by_name(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path / "a", content, **LANGUAGES)


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (tmx(*TWO), "TMX"),
        (CONTENTS["JSON Lines"], "JSON"),
        (CONTENTS["Parquet"], "Parquet"),
        (CONTENTS["tabs"], "tab-separated columns"),
        (b'msgid "one"\nmsgstr "eins"\n', "a gettext catalogue"),
        (b'<refset setid="t" srclang="any">\n<doc docid="a"><seg id="1">one</seg></doc></refset>', "SGML"),
    ],
)
def test_members_of_an_archive_that_are_no_lines_are_refused(tmp_path: Path, content: bytes, name: str) -> None:
    for members in ({"t.en": content, "t.de": b"eins\n"}, {"t.de": b"eins\n", "t.en": content}):
        with pytest.raises(UserError, match=rf"a\.zip: its member t\.en contains {name}; .* unpack it$"):
            read(tmp_path / "a.zip", as_zip(**members), **LANGUAGES)


@pytest.mark.parametrize("names", [("de.txt", "en.txt"), ("T.de.gz", "T.en.gz"), ("a.de.tok", "a.en.tok")])
def test_languages_of_members_are_also_found_before_their_endings(tmp_path: Path, names: tuple[str, str]) -> None:
    members = {names[0]: b"eins, zwei\n", names[1]: b"one, two\n"}
    if names[0].endswith("gz"):
        members = {name: gzip.compress(content) for name, content in members.items()}
    assert read(tmp_path / "a.zip", as_zip(**members), **LANGUAGES) == ParallelText(["eins, zwei"], ["one, two"])


def test_members_of_the_same_language_are_known_by_their_extensions(tmp_path: Path) -> None:
    path = _written(tmp_path / "a.zip", as_zip(**{"t.de": b"eins\n", "t.en.1": b"one\n", "t.en.2": b"1\n"}))
    assert ZipPair().languages(path).names == ["de", "1", "2"]
    assert list(ZipPair().pairs(path, [("de",), ("1",), ("2",)])) == [("eins", "one", "1")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (tmx(), "a: TMX without any pair"),
        (b'<xliff version="2.0" srcLang="en" trgLang="de"></xliff>', "a: XLIFF without any pair"),
        (b'msgid ""\nmsgstr "Language: de"\n', "a: a gettext catalogue without any pair"),
        (tmx({"en": "one"}), "data.tgt_lang=de: .*a has en$"),
        (as_parquet([{"pair": {"en": "one", "de": "eins"}, "id": 1}]), r"a: no column has text; it has pair \(struct"),
        (as_parquet([{"en": "one", "de": ["eins"]}]), r"tgt_lang=de: .*a has en, and without text de \(list<"),
        (b"ARROW1\0\0" + bytes(64), "a: an Arrow file, not text: type data=hub data.path=arrow data.data_files=FILE"),
        (b"\xff\xff\xff\xff" + bytes(64), "a: an Arrow file, not text"),
        (b"PK\x05\x06" + bytes(18), "a: a ZIP archive .* with 0 text files"),
        (b"en\tde\rone\teins\rtwo\tzwei\r", r"a: its lines end with CR alone, not LF: tr '\\r' '\\n' < FILE"),
    ],
)
def test_a_file_without_pairs_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path / "a", content, src_lang="en", tgt_lang="de")


def test_a_file_of_one_language_is_not_asked_for_two(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a: two languages are needed, but it has only en$"):
        read(tmp_path / "a", tmx({"en": "one"}))


def test_two_columns_of_a_name_are_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(
        pa.Table.from_arrays([pa.array(["one"]), pa.array(["eins"]), pa.array(["x"])], ["en", "de", "de"]),
        tmp_path / "a",
    )
    with pytest.raises(UserError, match="a: several columns have the name de"):
        Files(train={"file": str(tmp_path / "a")}, **LANGUAGES)


def test_string_views_are_text(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"de": pa.array(["eins"], pa.string_view()), "en": ["one"]}), tmp_path / "a")
    assert Files(train={"file": str(tmp_path / "a")}, **LANGUAGES).given()["train"].load().src == ["eins"]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize(
    "text", ["eins und\tone and\n", "привет мир\thello\n", "你好世界\thello\n", '[{"de": "a", "en": "b"}]']
)
def test_utf_16_without_a_mark_is_named(tmp_path: Path, encoding: str, text: str) -> None:
    name = encoding.upper().replace("-", "").replace("UTF16", "UTF-16")
    with pytest.raises(UserError, match=rf"a: the text is {name} without a .*: iconv -f {name} -t UTF-8 FILE > NEW"):
        read(tmp_path / "a", (text * 30 if "\n" in text else text).encode(encoding))


@pytest.mark.parametrize(
    "text", ["a\0b\tc\n\0" * 10, "a\n\0\tb\nc\td\nee\tf\n" * 5, "\0" * 40 + "\tb\n", "abcd\n\0" + "efg\n" * 8]
)
def test_nul_in_utf_8_is_text(tmp_path: Path, text: str) -> None:
    assert utf_16_of(text.encode()) is None


def test_xml_in_another_encoding_than_it_declares_is_named(tmp_path: Path) -> None:
    content = tmx({"en": "one", "de": "fünf"}).decode().encode("latin-1")
    with pytest.raises(
        UserError, match=r"a, line \d: not valid XML \(not well-formed .*; byte 0xfc is not UTF-8, or not in"
    ):
        read(tmp_path / "a", content, src_lang="en", tgt_lang="de")


@pytest.mark.parametrize("value", [5, 0, 2.5, True, [1, 2], ["a", 3], {"a": "b"}])
def test_a_path_is_text(value: Any) -> None:
    with pytest.raises(
        UserError, match=r"^data\.train\.file=.*: must be a path or a list of paths; a file named 5 is ./5"
    ):
        Files(train={"file": value})


@pytest.mark.parametrize(
    "train", [{"file": "https://a.org/b.tsv"}, {"src": "https://a.org/b", "tgt": "https://a.org/b"}]
)
def test_an_address_is_refused(train: dict[str, str]) -> None:
    with pytest.raises(
        UserError, match=r"^data\.train\.(file|src)=https://a\.org/b.*: this is a URL, but a local file is"
    ):
        Files(train=train).given()


def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for train in ({"file": str(tmp_path / "pipe")}, {"src": str(tmp_path / "pipe"), "tgt": "x"}):
        with pytest.raises(UserError, match=r"^data\.train\.(file|src)=.*pipe: a pipe can be read only once: write"):
            Files(train=train).given()


def test_an_array_of_texts_is_the_target_and_its_further_references(tmp_path: Path) -> None:
    rows = [{"de": "eins", "en": ["one", "a"]}, {"de": "zwei", "en": "two"}, {"de": "drei", "en": []}]
    path = tmp_path / "dev.jsonl"
    path.write_bytes(as_json_lines(rows))
    pairs = list(detect_format(str(path)).pairs(str(path), [["de"], ["en"]]))
    assert pairs == [("eins", "one", "a"), ("zwei", "two"), ("drei", "")]


@pytest.mark.parametrize("row", [{"de": ["eins", "ein"], "en": "one"}, {"de": "eins", "en": ["one", 1]}])
def test_an_array_on_the_source_side_or_of_other_values_is_rejected(tmp_path: Path, row: dict[str, Any]) -> None:
    path = tmp_path / "dev.jsonl"
    path.write_bytes(as_json_lines([row]))
    with pytest.raises(UserError, match="line 1: a sentence has type"):
        list(detect_format(str(path)).pairs(str(path), [["de"], ["en"]]))
