"""What the readers share: one line per text, the keys of sides, and lines of limited length."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diglot.data.readers.units import MAX_UNIT, decode, numbered_lines, one_line, pair_keys
from diglot.errors import UserError


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a  b", "a  b"),
        (" a\t", "a"),
        ("\n  a \t\r\n\n  b\rc\n", "a b c"),
        ("\u00a0a\u2028b\u3000\n", "\u00a0a\u2028b\u3000"),
        (" \n ", ""),
    ],
)
def test_line_breaks_become_one_space_and_other_characters_stay(text: str, line: str) -> None:
    assert one_line(text) == line


@given(st.text("ab \t\r\n\u00a0"))
def test_one_line_keeps_the_words_and_is_idempotent(text: str) -> None:
    line = one_line(text)
    assert line == one_line(line)
    assert not {"\n", "\r"} & set(line)
    assert line.split() == text.split()


def test_a_long_text_takes_linear_time() -> None:
    assert one_line(" " * 1_000_000 + "a\n" + " " * 1_000_000 + "b") == "a b"  # backtracking would take hours


@pytest.mark.parametrize(
    ("languages", "keys"),
    [
        (("de", "en"), ("de", "en")),
        ((None, "en"), ("src", "en")),
        (("de", ""), ("de", "tgt")),
        (("en", "en"), ("src", "tgt")),
        (("tgt", None), ("src", "tgt")),
    ],
)
def test_the_keys_of_two_sides_always_differ(languages: tuple[str | None, str | None], keys: tuple[str, str]) -> None:
    assert pair_keys(*languages) == keys


def test_lines_have_numbers_and_no_byte_order_mark() -> None:
    assert list(numbered_lines(io.BytesIO(b"\xef\xbb\xbfa\n\xef\xbb\xbfb"), "F")) == [
        (1, b"a\n"),
        (2, b"\xef\xbb\xbfb"),
    ]


class Endless(io.RawIOBase):
    """A file of repeated bytes without an end; counts what is read."""

    n_read = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:
        buffer[:] = b"x" * len(buffer)
        self.n_read += len(buffer)
        return len(buffer)


def test_an_endless_line_is_refused() -> None:
    endless = Endless()
    with pytest.raises(UserError, match=r"^F, line 1: more than 16,777,216 bytes in one line$"):
        list(numbered_lines(io.BufferedReader(endless, 2**16), "F"))
    assert endless.n_read < MAX_UNIT + 2**17


def test_invalid_bytes_are_refused_with_the_line() -> None:
    assert decode(b"\xe4", "latin-1", "F", 3) == "ä"
    with pytest.raises(UserError, match=r"^F, line 3: not UTF-8 \(invalid start byte, byte 0xff\)$"):
        decode(b"a\xff", "utf-8", "F", 3)
