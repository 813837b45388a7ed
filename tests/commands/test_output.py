"""Output goes to the named file, atomically, and replaces nothing else."""

import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from diglot.commands.output import refuse_same, refuse_unwritable, written
from diglot.errors import UserError


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    with written(str(pipe)) as write:
        write("one\n")
        write("two\n")
    reader.join(10)
    assert got == ["one\ntwo\n"]
    assert pipe.is_fifo()


def test_a_link_stays_one_and_its_file_is_replaced_as_a_whole(tmp_path):
    (tmp_path / "there").mkdir()
    file, link = tmp_path / "there" / "file", tmp_path / "link"
    file.write_text("before")
    link.symlink_to(file)
    with suppress(RuntimeError), written(str(link)) as write:
        write("half")
        raise RuntimeError
    assert file.read_text() == "before"
    with written(str(link)) as write:
        write("after")
    assert link.is_symlink()
    assert file.read_text() == "after"
    assert len(list(tmp_path.rglob("*"))) == 3


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("", "html=: is a folder"),
        (".", r"html=\.: is a folder"),
        ("/", "html=/: is a folder"),
        ("/proc/none", "/proc/none: cannot be written"),
        ("http://host.example/file", "html=http://host.example/file: this is a URL, but a file is needed$"),
    ],
)
def test_where_nothing_can_be_written_is_said_before_anything_is(tmp_path, monkeypatch, path, reason):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=reason), written(path, "html"):
        pytest.fail("it was begun")
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_neither_read_and_written_nor_written_twice(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.ckpt").touch()
    Path("link").symlink_to("a.ckpt")
    refuse_same({"output": "b", "html": None}, {"checkpoint": "a.ckpt", "input": None})
    refuse_same({"output": "b"}, {"input": "in", "prefix": "in"})
    for name in ("a.ckpt", "./a.ckpt", str(tmp_path / "a.ckpt"), "link"):
        with pytest.raises(UserError, match=f"output={name}: is also the checkpoint; name another file"):
            refuse_same({"output": name}, {"checkpoint": Path("a.ckpt")})
    with pytest.raises(UserError, match="html=b: is also the output; name another file"):
        refuse_same({"output": "b", "html": "b"}, {})


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    refuse_unwritable(tmp_path / "a" / "b")
    assert [path.name for path in tmp_path.rglob("*")] == ["a"]
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file/x cannot be created: "):
        refuse_unwritable(tmp_path / "file" / "x")
