"""A run writes only into its own folder, whoever created what the folder holds."""

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from diglot.config import Change
from diglot.errors import UserError
from diglot.runs.folder import is_finished, resumable_folder
from diglot.system.console import PrintHandler, log_to
from diglot.system.quoting import printable


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a run's folder that a stranger has passed on, next to a file of the user's."""
    (tmp_path / "mine").write_text("mine\n")
    (tmp_path / "elsewhere").mkdir()
    made = tmp_path / "run"
    (made / "text").mkdir(parents=True)
    (made / "evaluation").mkdir()
    (made / "config.yaml").write_text("seed: 1\n")
    return made


@pytest.mark.parametrize(
    "name", ["log.txt", "last.ckpt", "results.json", "hparams.yaml", "text/dev.de", "evaluation/test"]
)
@pytest.mark.parametrize("there", [True, False])
def test_a_link_in_a_run_s_folder_is_refused_by_name(folder: Path, name: str, there: bool) -> None:
    (folder / name).symlink_to(folder.parent / ("mine" if there else "not_there_yet"))
    with pytest.raises(UserError, match=f"{name} is a link") as refused:
        resumable_folder(str(folder))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["text", "evaluation", "figures", "ctranslate2"])
def test_a_linked_folder_in_a_run_s_folder_is_refused_by_name(folder: Path, name: str) -> None:
    if (folder / name).exists():
        (folder / name).rmdir()
    (folder / name).symlink_to(folder.parent / "elsewhere")
    with pytest.raises(UserError, match=f"{name} is a link"):
        resumable_folder(str(folder))


def test_a_pipe_in_a_run_s_folder_is_refused_and_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "results.json")
    assert not is_finished(folder)
    with pytest.raises(UserError, match=r"results\.json is neither a file nor a folder"):
        resumable_folder(str(folder))


def test_a_log_that_is_another_file_s_second_name_is_refused(folder: Path) -> None:
    os.link(folder.parent / "mine", folder / "log.txt")
    with pytest.raises(UserError, match=r"log\.txt is a hard link to another file"):
        resumable_folder(str(folder))


def test_a_folder_that_is_reached_through_a_link_is_taken_up(folder: Path) -> None:
    (folder.parent / "runs").symlink_to(folder.parent)
    (folder / "last.ckpt").touch()
    os.link(folder / "last.ckpt", folder / "best.ckpt")
    (folder / "log.txt").touch()
    assert resumable_folder(str(folder.parent / "runs" / "run")).is_dir()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Callable[[Path, str], None]]:
    """Return a function that writes one line to a log."""
    logger = logging.getLogger("diglot")
    before = list(logger.handlers)

    def write(file: Path, line: str) -> None:
        log_to(file)
        handler = logger.handlers[-1]
        handler.handle(logging.LogRecord("diglot", logging.INFO, "", 0, line, None, None))
        handler.close()

    yield write
    logger.handlers = before


def test_a_log_is_written_through_no_link_and_into_no_pipe(folder: Path, log: Callable[[Path, str], None]) -> None:
    (folder / "log.txt").symlink_to(folder.parent / "mine")
    with pytest.raises(UserError, match="cannot be written"):
        log(folder / "log.txt", "a line")
    assert (folder.parent / "mine").read_text() == "mine\n"
    (folder / "log.txt").unlink()
    os.mkfifo(folder / "log.txt")
    with pytest.raises(UserError, match="cannot be written"):
        log(folder / "log.txt", "a line")


def test_what_a_config_holds_begins_no_line_and_moves_no_cursor(
    tmp_path: Path, log: Callable[[Path, str], None], capsys: pytest.CaptureFixture
) -> None:
    hostile = "a\n* * * * * root sh\r\x1b[2J\x9b1m\u202e\u2028b"
    said = str(Change("seed", hostile, 1))
    assert said == r"seed was a\n* * * * * root sh\r\x1b[2J\x9b1m\u202e\u2028b and is 1"
    log(tmp_path / "log.txt", "x\x1b[2J\u202ey")
    assert (tmp_path / "log.txt").read_text(encoding="utf-8").endswith(r" x\x1b[2J\u202ey" + "\n")
    PrintHandler().emit(logging.LogRecord("diglot", logging.INFO, "", 0, "x\x1b[2Jy\nz", None, None))
    assert capsys.readouterr().out == "x\\x1b[2Jy\nz\n"
    assert printable("schön, שלום, \t") == "schön, שלום, \\t"
