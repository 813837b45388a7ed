"""Tests of reading and writing parallel text, byte by byte."""

import gzip
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from diglot.data.readers.opening import utf_16_of, zstd
from diglot.data.readers.reading import FileReader
from diglot.data.readers.rows import Tsv
from diglot.data.readers.sides import SideRequest
from diglot.data.text import (
    PairFiles,
    ParallelText,
    drop_blank_pairs,
    read_blocks,
    read_lines,
    read_parallel,
    split_lines,
    write_lines,
)
from diglot.errors import UserError
from diglot.system import atomic as whole


def read_tsv(path: Path, src_column: int = 0, tgt_column: int = 1) -> ParallelText:
    reader = FileReader(SideRequest(((src_column,), (tgt_column,))), Tsv(), columns_only=True)
    return PairFiles("train", [(str(path),)], reader).load()


LINE_SEPARATOR = "\u2028"
A_LINE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"))


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"a\nb\n", ["a", "b"]),
        (b"a\nb", ["a", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\r\r\nb\n", ["a\r", "b"]),
        (b"a\rb\nc\n", ["a\rb", "c"]),
        (b"a\n\nb\n\n", ["a", "", "b", ""]),
        (b"\n", [""]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
        (b"a\0b\nc\x0bd\x0ce\x1cf\xc2\x85g\n", ["a\0b", "c\x0bd\x0ce\x1cf\x85g"]),
        (f"a{LINE_SEPARATOR}b\nc\n".encode(), [f"a{LINE_SEPARATOR}b", "c"]),
    ],
)
def test_lines_end_at_lf_and_nowhere_else(tmp_path: Path, content: bytes, lines: list[str]) -> None:
    assert read_lines(written(tmp_path / "text", content)) == lines


def test_bad_utf8_is_refused_naming_file_and_line(tmp_path: Path) -> None:
    path = written(tmp_path / "text.de", b"gut\r\nauch gut\nschlecht \xe4\n")
    with pytest.raises(UserError, match=r"text\.de, line 3: not UTF-8 .*0xe4"):
        read_lines(path)


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf"])
def test_an_empty_file_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(UserError, match="text: the file is empty"):
        read_lines(written(tmp_path / "text", content))


def test_a_missing_file_a_folder_and_an_impossible_path_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="absent: no such file"):
        read_lines(tmp_path / "absent")
    with pytest.raises(UserError, match="is a folder"):
        read_lines(tmp_path)
    with pytest.raises(UserError, match="cannot be read"):
        read_lines("a\0b")


@given(
    lines=st.lists(A_LINE.filter(lambda line: not line.endswith("\r") and not line.startswith("\ufeff")), min_size=1)
)
def test_written_lines_are_read_back(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    path = tmp_path_factory.mktemp("round") / "text"
    write_lines(path, lines)
    assert read_lines(path) == lines
    assert path.read_bytes().count(b"\n") == len(lines)


def test_a_line_break_inside_a_line_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="line 2"):
        write_lines(tmp_path / "text", ["a", "b\nc"])
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file_and_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "text", b"old\n")

    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(whole.os, "fsync", full_disk)
    with pytest.raises(UserError, match="text: cannot be written: No space left"):
        write_lines(path, ["new"])
    assert path.read_bytes() == b"old\n"
    assert list(tmp_path.iterdir()) == [path]


def test_unequal_line_counts_are_refused_naming_both_files_and_counts(tmp_path: Path) -> None:
    src, tgt = written(tmp_path / "a.de", b"1\n2\n3\n"), written(tmp_path / "a.en", b"1\n2\n")
    with pytest.raises(UserError, match=r"dev: .*a\.de has 3 lines, .*a\.en has 2"):
        read_parallel(src, tgt, "dev")


def test_parallel_files_are_read_line_by_line(tmp_path: Path) -> None:
    src, tgt = written(tmp_path / "a.de", b"eins\r\n\r\ndrei"), written(tmp_path / "a.en", b"one\n\nthree\n")
    assert read_parallel(src, tgt, "train") == ParallelText(["eins", "", "drei"], ["one", "", "three"])


def test_unequal_sides_are_refused() -> None:
    with pytest.raises(ValueError, match="1 source sentences but 2"):
        ParallelText(["a"], ["b", "c"])


def test_tsv_has_no_quotes_and_no_missing_values(tmp_path: Path) -> None:
    path = written(tmp_path / "a.tsv", b'"a\tb"\textra\r\nNA\tnull\n"\t\n x \ra\t""y\n')
    assert read_tsv(path) == ParallelText(['"a', "NA", '"', " x \ra"], ['b"', "null", "", '""y'])


def test_tsv_columns_can_be_chosen(tmp_path: Path) -> None:
    path = written(tmp_path / "a.tsv", b"id1\ten\tde\nid2\tEN\tDE\n")
    assert read_tsv(path, src_column=2, tgt_column=1) == ParallelText(["de", "DE"], ["en", "EN"])


def test_a_tsv_row_with_too_few_columns_is_refused_naming_file_and_line(tmp_path: Path) -> None:
    path = written(tmp_path / "a.tsv", b"a\tb\nc\n")
    with pytest.raises(UserError, match=r"a\.tsv, line 2: 1 tab-separated column\(s\), 2 needed"):
        read_tsv(path)


def test_pairs_with_a_blank_side_are_dropped_and_counted() -> None:
    pairs = ParallelText(["a", "", "c", "\u00a0\t", "e"], ["A", "B", "  ", "D", "E"])
    assert drop_blank_pairs(pairs) == (ParallelText(["a", "e"], ["A", "E"]), 3)


@pytest.mark.parametrize("pack", [gzip.compress, zstd.compress])
def test_damaged_compressed_files_are_refused_in_a_line(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    whole = pack("".join(f"line {i} {i * i}\n" for i in range(5000)).encode())
    path = tmp_path / ("a.gz" if pack is gzip.compress else "a.zst")
    path.write_bytes(whole)
    assert len(read_lines(path)) == 5000
    damaged = [whole[: len(whole) // 2], whole[:-3], b"no archive\n"]
    if pack is gzip.compress:  # zstd writes no checksum by default
        damaged.append(whole[:50] + b"x" + whole[51:])
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(UserError, match=rf"{path.name}: (the compressed file is cut short|damaged)"):
            read_lines(path)


@given(st.binary(max_size=60), st.integers(1, 5))
def test_blocks_contain_all_lines(tmp_path_factory: pytest.TempPathFactory, content: bytes, size: int) -> None:
    path = tmp_path_factory.mktemp("blocks") / "text"
    others = (b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff", b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04", b"PK\x05\x06")
    assume(not content.startswith(others) and utf_16_of(content) is None)
    path.write_bytes(content)
    try:
        expected = split_lines(content, str(path))
    except UserError as error:
        with pytest.raises(UserError, match=re.escape(str(error))):
            list(read_blocks(path, size))
        return
    if not expected:
        return
    blocks = list(read_blocks(path, size))
    assert [line for block in blocks for line in block] == expected
    assert max(map(len, blocks)) <= size


def test_an_invalid_line_is_named_at_any_position(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"a\n" * 70 + b"\xc3(\n")
    with pytest.raises(UserError, match=r"text, line 71: not UTF-8 \(invalid continuation byte, byte 0xc3\)"):
        list(read_blocks(path, 20))


@pytest.mark.parametrize(("n_src", "n_tgt"), [(50, 41), (41, 50), (40, 41), (45, 20)])
def test_unequal_files_are_refused_with_both_counts_for_any_block_size(tmp_path: Path, n_src: int, n_tgt: int) -> None:
    for name, n in (("s", n_src), ("t", n_tgt)):
        (tmp_path / name).write_text("x\n" * n)
    pairs = PairFiles("train", [(str(tmp_path / "s"), str(tmp_path / "t"))])
    with pytest.raises(
        UserError, match=rf"train: \S+s has {n_src} lines, \S+t has {n_tgt}; both must have one line per pair"
    ):
        list(pairs.blocks(20))
