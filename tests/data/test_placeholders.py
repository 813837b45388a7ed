"""Tests that a pattern finds the same as with Python's `re`, and that an endless search is stopped."""

import contextlib
import re

import pytest

from diglot.data.placeholders import MAX_PATTERN_LENGTH, Placeholders, check_placeholder
from diglot.errors import UserError

PATTERNS = [
    r"\{[^{}\s]+\}",
    r"\{[^}]*\}|%\w|<[^<>]+>",
    r"https?://\S+",
    r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+",
    r"\b[\w.-]+@[\w.-]+\.\w{2,}\b",
    r"%(?:\d+\$)?[-+ 0]*\d*(?:\.\d+)?[sdfx]",
    r"%(?P<name>\w+)%",
    r"(?i)__name\d+__",
    r"(?<!\w)@\w+",
    r"\$\{.*?\}",
    r"\d+(?:[.,]\d+)*",
    r"\{\w+(?:\.\w+)*\}",
    r"\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}",
    r"(\w)\1",
    r"&#?\w{1,8};",
    r"(?:%[sd]){2}",
    r"[⟦][^⟧]*[⟧]",
    # Braces that are not repeats: `regex` reads some of them as limits for approximate matches.
    r"{name}",
    r"%{s}",
    r"x{e}",
    r"x{i<=1}",
    r"[{}]{e}[^}]",
    r"[]{}]{2}",
    r"a{2}",
    r"a{,2}b",
    r"\\{e}",
]
LINES = [
    "Turn {größe} on, {b.c} and {a{b}c}: %d of %1$s, <b>x</b> &amp; ${HOME}, see http://a.b/c or me.x+y@mail.co.uk.",
    "%name% __NAME3__ @you 1,234.5 ⟦x⟧ {name} %{s} %s%d x{e} xx x{i<=1} {{e}a aab ab b \\{e} y{e} xe {}",
    "",
]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("line", LINES)
def test_matches_equal_those_of_re(pattern: str, line: str) -> None:
    placeholders, wanted = Placeholders(pattern), [match[0] for match in re.finditer(pattern, line)]
    assert placeholders.find(line) == wanted
    assert placeholders.occurs_in(line) == bool(wanted)
    assert placeholders.replace(line, lambda name: f"<{name}>") == re.sub(pattern, r"<\g<0>>", line)


def test_matches_of_the_extra_pattern_are_found() -> None:
    assert Placeholders(r"\{\w+\}", "[xy]").find("{x} y z") == ["{x}", "y"]


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (r"([A-Za-z ]+)+#", "a" * 40 + "!#"),
        (r"(\w+)+\1#", "a" * 60 + "!#"),
        (
            "x" + "".join(f"[{a}{b}]*" for a, b in zip("abcdefghijkl", "bcdefghijklm")) + "#",
            "x" + "".join(c * 8 for c in "abcdefghijklm") + "!#",
        ),
        (r"x[xa]*a*#", "x" * 4_000 + "a" * 4_000 + "!#"),
    ],
)
def test_a_search_with_any_pattern_ends(monkeypatch: pytest.MonkeyPatch, pattern: str, line: str) -> None:
    monkeypatch.setattr("diglot.data.placeholders.TIME_LIMIT", 0.05)
    placeholders = Placeholders(pattern)
    for search in (placeholders.find, placeholders.occurs_in, lambda line: placeholders.replace(line, str)):
        with contextlib.suppress(UserError):  # raised unless the engine avoids the backtracking
            search(line)


def test_an_endless_search_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diglot.data.placeholders.TIME_LIMIT", 0.05)
    with pytest.raises(UserError, match=r"placeholder \(x\[xa\]\*a\*#\|y\) takes more than 0\.05 seconds in a line"):
        Placeholders(r"x[xa]*a*#|y").find("x" * 4_000 + "a" * 4_000 + "!#")


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("(?x) a # b", r"\(\?x\)"),
        ("a*", "must not match the empty string"),
        ("", "must not match the empty string"),
        ("(", "not a regular expression"),
        ("(" * 900, "not a regular expression"),
        (r"\p{L}", "not a regular expression"),
        ("x" * (MAX_PATTERN_LENGTH + 1), "1,001 characters"),
        ("(a|b" * 1_000_000, "characters"),
    ],
)
def test_an_invalid_pattern_is_refused(pattern: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as error:
        check_placeholder(pattern)
    assert len(str(error.value)) < 300


def test_none_is_a_valid_pattern() -> None:
    check_placeholder(None)
