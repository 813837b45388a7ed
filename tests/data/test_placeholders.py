"""A pattern is taken if its search ends soon, whatever the text."""

import re

import pytest

from diglot.data.placeholders import check_placeholder

TAKEN = [
    r"\{[^{}\s]+\}",
    r"\{[^}]*\}|%\w|<[^<>]+>",
    r"https?://\S+",
    r"[\w.]+@[\w.]+\.\w+",
    r"\S+@\S+",
    r"%(?:\d+\$)?[-+ 0]*\d*(?:\.\d+)?[sdfx]",
    r"%(?P<name>\w+)%",
    r"(?i)__name\d+__",
    r"(?<!\w)@\w+",
    r"\$\{.*?\}",
    r"&#?\w{1,8};",
    r"(?:%[sd]){2}",
    r"[⟦][^⟧]*[⟧]",
]
REFUSED = {
    r"([A-Za-z ]+)+#": "repeats what contains a repeat",
    r"(?:a|ab)*#": "repeats what contains a repeat or a choice",
    r"(?:a?b?)*#": "repeats what may be empty",
    r"\w*\w*#": "follow each other",
    r"%\w*\w*\w*#": "follow each other",
    r"(\w+)(?:[a-z]*)x": "follow each other",
    r"(?:\w+|x)[a-z]+x": "follow each other",
    r"\w{0,99}\w{0,99}#": "follow each other",
    r"(?:a?){20}" + "a" * 20: "may be empty",
    "a?" * 20 + "a" * 20: "ways",
    "(?:a{0,15}){20}b": "may be empty",
    r"(\w+)\s\1": "refers back",
    r"(?=\w*\w*#)a": "looks ahead",
    r"(?i:[a-z]*)[A-Z]*#": "follow each other",
    "(?x) a # b": r"\(\?x\)",
    "a*": "must not match where there is nothing",
    "(": "no regular expression",
    "(" * 900: "no regular expression",
    "x" * 1001: "1,001 characters",
    "(a|b" * 1_000_000: "characters",
}


@pytest.mark.parametrize("pattern", TAKEN)
def test_patterns_that_people_write_are_taken(pattern):
    check_placeholder(pattern)


@pytest.mark.parametrize("pattern", REFUSED)
def test_patterns_that_may_take_any_time_are_refused(pattern):
    with pytest.raises(ValueError, match=REFUSED[pattern]) as error:
        check_placeholder(pattern)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("pattern", TAKEN)
def test_what_is_taken_ends_soon_on_texts_made_of_its_own_characters(pattern):
    for piece in ("a", "a@", "{", "{a", "%0", "0", "@a.", "<a", "$" + "{", "&#a", "_", "⟦a", "%0$"):
        list(re.finditer(pattern, piece * 1_000))
