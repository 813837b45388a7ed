"""No part of a secret appears in a message, in whatever form it is written there."""

import gc
import html
import io
import json
import logging
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch.loggers.logger import DummyLogger

from diglot.system import masking, streams
from diglot.system.masking import in_one_line, masked, note, shortened
from diglot.training import loggers

SECRETS = ["p@ss/w\"ord'1\\2\n3 ü訳😀$x", "hunter2-0a1b", "a&b<c>d é", "/scratch/it's/x y", "tok\ten==/+"]


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.excepthook", lambda *_: None)
    monkeypatch.setattr("diglot.system.masking._expressions", {})


def forms(secret: str) -> list[str]:
    """Return the forms in which other programs may write a secret."""
    written = [repr(secret), json.dumps(secret), json.dumps(secret, ensure_ascii=False), repr(secret.encode())]
    written += [quote(secret), quote(secret, safe=""), quote_plus(secret), ascii(secret), html.escape(secret)]
    twice = [repr(json.dumps({"a": secret})), json.dumps(json.dumps(secret)), quote(json.dumps(secret))]
    return [secret, " ".join(secret.split()), *written, *twice]


@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_is_masked_in_every_form(secret: str) -> None:
    note(secret, "${x}")
    for form in forms(secret):
        shown = masked(f"before {form} after")
        assert "${x}" in shown, form
        assert shown.startswith("before ")
        assert shown.endswith(" after")


@given(st.text(st.characters(blacklist_categories=["Cs"]), min_size=6).filter(lambda text: len(text.strip()) >= 6))
def test_any_text_is_masked_in_every_form(secret: str) -> None:
    masking._expressions.clear()
    note(secret, "${x}")
    for form in forms(secret):
        assert "${x}" in masked(f"before {form} after"), form


def test_a_value_of_many_backslashes_takes_no_time() -> None:
    note("\\\\ \"\"''" * 20, "${x}")
    began = time.process_time()
    masked("\\" * 2000 + '"' * 2000)
    assert time.process_time() - began < 5


@pytest.mark.reliability
@pytest.mark.parametrize(
    ("secret", "text"),
    [
        ("/hunter2-0a1b", "\\" * 20_000),
        ("/hunter2-0a1b", "hunter2" + "\\" * 20_000),
        ("/hunter2-0a1b", "hunter2" + "%5C" * 7_000),
        ("/key1", "key1 " + "\\" * 20_000),
        ("\"'\"'\"'", "\\" * 20_000),
        ("\n".join(f"{i}: MIIEvQIBADANBgkqhkiG{i}" for i in range(2000)), "nothing of it"),
    ],
)
def test_masking_takes_no_longer_than_a_text_is_long(secret: str, text: str) -> None:
    text *= 10
    note(secret, "${x}")
    gc.collect()
    gc.disable()  # its time depends on earlier tests
    try:
        began = time.process_time()
        assert masked(text) == text
        assert time.process_time() - began < 5  # it took minutes while the time grew with the square of the length
    finally:
        gc.enable()


@pytest.mark.parametrize("secret", ["/hunter2-0a1b", "/key1", "'key1"])
@pytest.mark.parametrize("before", ["", "x", " ", "\\", "x\\", "x\\\\", "x \\\\\\", "/", "%5C", "x\\%5c"])
def test_a_secret_is_found_after_any_text_unless_it_is_within_a_word(secret: str, before: str) -> None:
    note(secret, "${x}")
    is_within_a_word = before == "x" and len(secret) < masking.MIN_LENGTH_WITHIN_WORDS
    assert ("${x}" in masked(f"{before}{secret}!")) != is_within_a_word


@pytest.mark.parametrize("form", [str, repr, json.dumps, quote])
def test_a_long_value_is_masked_as_a_whole(form: Callable[[str], str]) -> None:
    secret = "\n".join(f"{i}: MIIEvQIBADANBgkqhkiG{i}" for i in range(300))
    note(secret, "${x}")
    assert re.fullmatch(r"before .?(\$\{x\})+.? after", masked(f"before {form(secret)} after"))


def test_spaces_in_a_secret_match_only_spaces() -> None:
    note("data train", "${x}")
    assert masked("datatrain, data  train") == "datatrain, ${x}"


def test_names_stay_readable() -> None:
    note("data", "${x}", "data.train")
    note(["hunter2-0a1b"], "${y}", "data.train")
    assert masked("data.train: hunter2-0a1b") == "data.train: ${y}"


def test_a_cut_leaves_no_part_of_a_secret() -> None:
    note("hunter2-0a1b2c3d4e5f", "${x}")
    for n in range(20):
        said = in_one_line(ConnectionError("." * (200 - n) + "hunter2-0a1b2c3d4e5f refused"))
        assert "hunter" not in said
        assert len(said) <= 200
    assert shortened("a" * 61, 60, "...") == "a" * 57 + "..."
    assert in_one_line(ValueError()) == "ValueError"


def test_a_logger_s_error_is_masked_before_it_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    note("hunter2-0a1b2c3d4e5f", "${x}")
    error = ConnectionError("." * 190 + "hunter2-0a1b2c3d4e5f refused")
    with loggers.beginning("logger.mine"):
        raise error
    with loggers.forgiven(DummyLogger()):
        raise error
    assert len(caplog.records) == 2
    assert "hunter" not in caplog.text


def test_nothing_written_to_stdout_or_stderr_shows_a_secret(tmp_path: Path) -> None:
    note("hunter2-0a1b2c3d4e5f", "${x}")
    with (tmp_path / "out").open("wb") as file:
        stream = streams.forgiving(None, os.dup(file.fileno()))
        print("a library's warning: hunter2-0a1b2c3d4e5f", file=stream)
        logging.StreamHandler(stream).emit(logging.makeLogRecord({"msg": "hunter2%%2D0a1b2c3d4e5f %s", "args": (1,)}))
        stream.flush()
    assert isinstance(stream, io.TextIOWrapper)
    assert (tmp_path / "out").read_text() == "a library's warning: ${x}\n${x} 1\n"
