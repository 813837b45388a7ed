"""An event file has the form of TensorBoard's own."""

import re
from contextlib import nullcontext
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from diglot.training.event_file import EventFile, EventWriter, numbered, without_number


def file_in(folder: Path) -> Path:
    (file,) = folder.iterdir()
    return file


def test_name_and_content_equal_those_of_tensorboard(tmp_path: Path) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    EventFileWriter(str(theirs), filename_suffix=".x").close()
    writer = EventWriter(str(ours), nullcontext, filename_suffix=".x")
    pattern = r"\d+"  # time, process ID, and number of earlier files
    assert re.sub(pattern, "0", file_in(ours).name) == re.sub(pattern, "0", file_in(theirs).name)
    (begun,) = LegacyEventFileLoader(str(file_in(theirs))).Load()
    writer.add_scalar("x", 0.5, 3)
    events = list(LegacyEventFileLoader(str(file_in(ours))).Load())  # events are not buffered
    assert events[0].file_version == begun.file_version
    assert [(event.step, event.summary.value[0].simple_value) for event in events[1:]] == [(3, 0.5)]
    assert events[0].wall_time < events[1].wall_time


def test_no_event_follows_an_incomplete_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    writer = EventWriter(str(tmp_path), nullcontext)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", full)
        with pytest.raises(OSError, match="No space"):
            writer.add_scalar("x", 0.5, 3)
    with pytest.raises(OSError, match="No space"):
        writer.add_scalar("x", 0.5, 4)
    assert len(list(LegacyEventFileLoader(str(file_in(tmp_path))).Load())) == 1


def test_it_starts_again_after_its_folder_was_moved(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    writer = EventWriter(str(here), nullcontext)
    writer.add_scalar("x", 0.5, 3)
    here.rename(there)
    with pytest.raises(FileNotFoundError):
        writer.add_scalar("x", 0.5, 4)
    here.mkdir()
    writer.add_scalar("x", 0.5, 5)
    for folder, step in ((there, 3), (here, 5)):
        begun, event = LegacyEventFileLoader(str(file_in(folder))).Load()
        assert (begun.file_version, event.step) == ("brain.Event:2", step)


def test_a_file_that_cannot_be_opened_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        EventFile(str(tmp_path / "file"), nullcontext)


def test_a_further_dev_set_is_shown_beside_dev() -> None:
    tags = {
        "dev/bleu": "1_dev/bleu",
        "dev_old/bleu": "1_dev_old/bleu",
        "train/loss": "2_train/loss",
        "dev2/x": "dev2/x",
    }
    assert {tag: numbered(tag) for tag in tags} == tags
    assert {without_number(shown): tag for tag, shown in tags.items()} == {tag: tag for tag in tags}
