"""`python -m diglot COMMAND`. test_interruption and test_threads check that it starts each command."""

import re
import sys
from importlib.metadata import entry_points

import pytest

from diglot import __main__ as entry
from diglot.commands.start import COMMANDS


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["trian", "seed=1"], 2, "diglot: 'trian' is not a command, there are prepare, .*; did you mean train[?]"),
    ],
)
def test_a_word_that_is_no_command_is_answered_by_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, words: list[str], status: int, says: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["diglot", *words])
    with pytest.raises(SystemExit, match=str(status)):
        entry.main()
    out, error = capsys.readouterr()
    assert [out, error][status > 0].count("\n") == 1
    assert not [error, out][status > 0]
    assert re.match(says, (out + error).strip())


@pytest.mark.parametrize(("words", "status"), [([], 2), (["--help"], 0), (["-h"], 0)])
def test_without_a_command_all_are_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, words: list[str], status: int
) -> None:
    monkeypatch.setattr(sys, "argv", ["diglot", *words])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit, match=str(status)):
        entry.main()
    said, other = capsys.readouterr()[:: -1 if status else 1]
    assert not other
    assert ("no command is given" in said) == bool(status)
    assert re.findall(r"^  (\w+) {3,}[A-Z]", said, flags=re.MULTILINE) == list(COMMANDS)


def test_every_script_is_a_command() -> None:
    scripts = {point.name for point in entry_points(group="console_scripts") if point.name.startswith("diglot-")}
    assert scripts == {f"diglot-{command}" for command in COMMANDS}
