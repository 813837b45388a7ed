"""Checkpoints are written atomically, and the best one is the best one."""

import io
import logging
import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from diglot.checkpoint import container
from diglot.checkpoint.atomic_io import AtomicCheckpointIO
from diglot.checkpoint.file import FORMAT, KINDS, newest_intact, read
from diglot.data.text import write_lines
from diglot.errors import UserError
from diglot.runs import folder as folders
from diglot.system import console
from diglot.training.checkpoint_writer import CheckpointWriter, MissedValidation
from diglot.training.state import RunState
from diglot.training.task import TranslationTask


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def save_half(error: BaseException) -> Any:
    """Return a function that writes a checkpoint and fails when half of the file is written."""
    whole = container.write

    def save(content: Any, file: Any) -> None:
        buffer = io.BytesIO()
        whole(content, buffer)
        file.write(buffer.getvalue()[: buffer.tell() // 2])
        raise error

    return save


def test_a_checkpoint_is_restored_and_no_other_file_is_left(tmp_path: Path) -> None:
    path = tmp_path / "new" / "last.ckpt"
    for n in (1, 2):
        AtomicCheckpointIO(read).save_checkpoint({"x": torch.full((3,), n)}, path)
        assert container.read(path)["x"].tolist() == [n] * 3
        assert names(path.parent) == ["last.ckpt"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), OSError("write failed")])
def test_a_failed_write_leaves_the_old_checkpoint_and_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO(read).save_checkpoint({"x": 1}, path)
    monkeypatch.setattr(container, "write", save_half(error))
    with pytest.raises(UserError, match=r"last\.ckpt: the checkpoint cannot be written") as refused:
        AtomicCheckpointIO(read).save_checkpoint({"x": 2}, path)
    assert "\n" not in str(refused.value)
    assert container.read(path) == {"x": 1}
    assert names(tmp_path) == ["last.ckpt"]


def test_an_interrupt_leaves_the_old_checkpoint_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO(read).save_checkpoint({"x": 1}, path)
    monkeypatch.setattr(container, "write", save_half(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        AtomicCheckpointIO(read).save_checkpoint({"x": 2}, path)
    assert container.read(path) == {"x": 1}
    assert names(tmp_path) == ["last.ckpt"]


def test_a_first_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "write", save_half(OSError(28, "No space left on device")))
    with pytest.raises(UserError):
        AtomicCheckpointIO(read).save_checkpoint({"x": 2}, tmp_path / "last.ckpt")
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="the checkpoint cannot be written"):
        AtomicCheckpointIO(read).save_checkpoint({"x": 1}, tmp_path / "file" / "last.ckpt")


class StubTrainer(SimpleNamespace):
    """The parts of a trainer that the callback uses; a checkpoint holds only the run's state."""

    def save_checkpoint(self, path: Path) -> None:
        AtomicCheckpointIO(read).save_checkpoint(self.state.to_record(), path)


def validate(
    callback: CheckpointWriter,
    task: TranslationTask,
    update: int,
    bleu: float,
    metrics: dict[str, float] | None = None,
    **options: Any,
) -> None:
    trainer = StubTrainer(
        state=callback.state,
        global_step=update,
        callback_metrics={
            "dev/bleu": torch.tensor(bleu),
            "dev/chrf": torch.tensor(2 * bleu),
            "train/loss": 1.0,
            **(metrics or {}),
        },
        loggers=[],
        **{"sanity_checking": False, "fast_dev_run": False, "is_global_zero": True, "should_stop": False} | options,
    )
    callback.on_validation_end(trainer, task)  # type: ignore[arg-type]


@pytest.fixture
def task() -> TranslationTask:
    made = TranslationTask.__new__(TranslationTask)
    torch.nn.Module.__init__(made)
    return made


def test_best_is_the_best_and_last_the_last(tmp_path: Path, task: TranslationTask) -> None:
    callback = CheckpointWriter(tmp_path)
    for update, bleu, best in ((10, 5.0, 10), (20, 7.0, 20), (30, 7.0, 20), (40, 6.0, 20), (50, 8.0, 50)):
        validate(callback, task, update, bleu)
        kept = [container.read(tmp_path / name) for name in ("best.ckpt", "last.ckpt")]
        assert [content["update"] for content in kept] == [best, update]
        assert kept[1]["dev_bleu"] == pytest.approx(bleu)
        assert callback.best_update == best
    assert kept[0]["dev_bleu"] == callback.best_score == pytest.approx(8.0)
    assert names(tmp_path) == ["best.ckpt", "last.ckpt", "previous.ckpt"]
    assert container.read(tmp_path / "previous.ckpt")["update"] == 40


def test_as_many_checkpoints_are_kept_as_requested(tmp_path: Path, task: TranslationTask) -> None:
    callback = CheckpointWriter(tmp_path, keep_best=2, keep_last=2)
    expected = {10: [10], 20: [10, 20], 30: [20, 30], 40: [20, 30, 40], 50: [20, 40, 50], 60: [20, 50, 60]}
    scores = {10: 5.0, 20: 8.0, 30: 7.0, 40: 7.0, 50: 7.5, 60: 1.0}
    for update, kept in expected.items():
        if update == 40:  # a killed run resumes with its own checkpoints and leaves other files alone
            callback.last.with_name("update_mine.ckpt").write_bytes(b"")
            state, callback = callback.state_dict(), CheckpointWriter(tmp_path, keep_best=2, keep_last=2)
            callback.load_state_dict(state)
        validate(callback, task, update, scores[update])
        files = {file.stem: file for file in tmp_path.glob("update_[0-9]*.ckpt")}
        assert sorted(files) == [f"update_{n}" for n in kept]
        for n in kept:
            content = container.read(files[f"update_{n}"])
            assert (content["update"], content["dev_bleu"]) == (n, scores[n])
    assert (tmp_path / "update_mine.ckpt").exists()


@pytest.mark.parametrize("keep", [1, 2])
def test_other_files_with_names_of_checkpoints_stay(tmp_path: Path, task: TranslationTask, keep: int) -> None:
    others = ["update_5.ckpt", "update_007.ckpt", "update_².ckpt", "update_mine.ckpt", "update_.ckpt"]
    for name in others:
        (tmp_path / name).write_bytes(b"somebody's")
    callback = CheckpointWriter(tmp_path, keep_last=keep)
    for update, bleu in ((10, 5.0), (20, 8.0), (30, 7.0), (40, 7.0)):
        validate(callback, task, update, bleu)
    assert all((tmp_path / name).read_bytes() == b"somebody's" for name in others)
    own = [f"update_{n}.ckpt" for n in ((20, 30, 40) if keep > 1 else ())]
    assert names(tmp_path) == sorted([*others, *own, "best.ckpt", "last.ckpt", "previous.ckpt"])


def test_a_kill_before_an_old_checkpoint_was_removed_is_repaired(tmp_path: Path, task: TranslationTask) -> None:
    callback = CheckpointWriter(tmp_path, keep_last=2)
    for update, bleu in ((10, 5.0), (20, 8.0), (30, 7.0)):
        validate(callback, task, update, bleu)
    before = callback.state_dict()
    before["named"] = [10, *before["named"]]  # as last.ckpt has it, before anything is removed
    (tmp_path / "update_10.ckpt").write_bytes(b"not removed")
    again = CheckpointWriter(tmp_path, keep_last=2)
    again.load_state_dict(before)
    again.on_train_start(StubTrainer(global_step=30, is_global_zero=True), task)  # type: ignore[arg-type]
    assert not (tmp_path / "update_10.ckpt").exists()


def test_the_dev_outputs_of_the_best_are_kept_also_after_a_kill(tmp_path: Path, task: TranslationTask) -> None:
    newest, best = outputs = tmp_path / "text" / "newest", tmp_path / "text" / "best"
    callback = CheckpointWriter(tmp_path, outputs=[outputs])
    for update, bleu, kept in ((10, 5.0, 10), (20, 7.0, 20), (30, 6.0, 20)):
        write_lines(newest, [f"of {update}"])  # as a validation does before the writer is called
        validate(callback, task, update, bleu)
        assert best.read_text() == f"of {kept}\n"
    write_lines(newest, ["of 40"])
    validate(callback, task, 40, 8.0)
    write_lines(best, ["of 20"])  # as if the process was killed after last.ckpt was written
    again = CheckpointWriter(tmp_path, outputs=[outputs])
    again.load_state_dict(callback.state_dict())
    again.on_train_start(StubTrainer(global_step=40, is_global_zero=True), task)  # type: ignore[arg-type]
    assert best.read_text() == "of 40\n"
    newest.unlink()  # by the user: the next validation writes it again
    again.on_train_start(StubTrainer(global_step=40, is_global_zero=True), task)  # type: ignore[arg-type]
    assert best.read_text() == "of 40\n"


def test_a_score_of_zero_can_be_the_best(tmp_path: Path, task: TranslationTask) -> None:
    validate(CheckpointWriter(tmp_path), task, 1, 0.0)
    assert names(tmp_path) == ["best.ckpt", "last.ckpt"]


# update: BLEU, chrF++, loss
TIES = {
    10: (0.0, 6.0, 5.0),
    20: (0.0, 36.0, 4.0),
    30: (0.0, 36.0, 3.0),
    40: (0.0, 36.0, 3.0),
    50: (0.0, 30.0, 1.0),
}


def test_ties_are_broken_by_chrf_and_then_by_loss(tmp_path: Path, task: TranslationTask) -> None:
    callback = CheckpointWriter(tmp_path, keep_best=2)
    for (update, (bleu, chrf, loss)), best in zip(TIES.items(), (10, 20, 30, 30, 30), strict=True):
        state, callback = callback.state_dict(), CheckpointWriter(tmp_path, keep_best=2)  # as after a kill
        callback.load_state_dict(state)
        validate(callback, task, update, bleu, {"dev/chrf": chrf, "dev/loss": loss})
        assert container.read(tmp_path / "best.ckpt")["update"] == best == callback.best_update
    assert callback.best_metrics == {"dev/bleu": 0.0, "dev/chrf": 36.0, "dev/loss": 3.0}
    assert sorted(callback.ranks) == [30, 40, 50]  # the best two and the last one
    assert callback.state.dev_rank == (0.0, 30.0, -1.0)


def test_a_run_resumes_from_the_state_of_an_older_checkpoint(tmp_path: Path, task: TranslationTask) -> None:
    old = {"best_score": 5.0, "best_update": 20, "best_metrics": {"dev/bleu": 5.0, "dev/chrf": 9.0, "dev/loss": 2.0}}
    for scores in ({"scores": {10: 4.0, 20: 5.0}}, {}):
        callback = CheckpointWriter(tmp_path, keep_best=2)
        callback.load_state_dict({**old, **scores})
        (tmp_path / "best.ckpt").touch()
        validate(callback, task, 30, 5.0, {"dev/chrf": 8.0, "dev/loss": 1.0})
        assert callback.best_update == 20
        validate(callback, task, 40, 5.0, {"dev/chrf": 9.5, "dev/loss": 1.0})
        assert (callback.best_update, callback.best_score) == (40, 5.0)


def test_of_a_metric_where_lower_is_better_the_lowest_is_the_best(tmp_path: Path, task: TranslationTask) -> None:
    callback = CheckpointWriter(tmp_path, keep_best=2, monitor="per", higher_is_better=False)
    for update, per, best in ((10, 50.0, 10), (20, 30.0, 20), (30, 30.0, 20), (40, 90.0, 20), (50, 7.0, 50)):
        state, callback = (
            callback.state_dict(),
            CheckpointWriter(tmp_path, keep_best=2, monitor="per", higher_is_better=False),
        )  # as after a kill
        callback.load_state_dict(state)
        validate(callback, task, update, 0.0, {"dev/per": per, "dev/chrf": 0.0})
        content = container.read(tmp_path / "best.ckpt")
        assert content["update"] == best == callback.best_update
        last = container.read(tmp_path / "last.ckpt")
        assert (last["dev_per"], last["dev_rank"][0], "dev_bleu" in last) == (per, -per, False)
        assert RunState.from_record(last, update, "per").dev_score == ("per", per)
    assert (content["dev_per"], callback.best_score) == (7.0, 7.0)
    assert {20, 50} <= callback.ranks.keys()


@pytest.mark.parametrize("options", [{"sanity_checking": True}, {"fast_dev_run": 1}])
def test_a_trial_leaves_no_checkpoint(tmp_path: Path, task: TranslationTask, options: dict) -> None:
    validate(CheckpointWriter(tmp_path), task, 1, 50.0, **options)
    assert names(tmp_path) == []


def test_the_best_score_survives_in_the_callback_s_state(tmp_path: Path, task: TranslationTask) -> None:
    callback = CheckpointWriter(tmp_path)
    validate(callback, task, 10, 5.0)
    restored = CheckpointWriter(tmp_path)
    restored.load_state_dict(callback.state_dict())
    validate(restored, task, 20, 4.0)
    assert (restored.best_update, restored.best_score) == (10, 5.0)
    assert restored.best_metrics == {"dev/bleu": 5.0, "dev/chrf": 10.0}
    assert container.read(tmp_path / "best.ckpt")["update"] == 10


def test_a_kill_between_the_two_names_of_the_best_checkpoint_is_repaired(tmp_path: Path, task: TranslationTask) -> None:
    callback = CheckpointWriter(tmp_path)
    validate(callback, task, 10, 5.0)
    validate(callback, task, 20, 6.0)
    (tmp_path / "best.ckpt").unlink()
    callback.on_train_start(StubTrainer(global_step=20, is_global_zero=True), task)  # type: ignore[arg-type]
    assert container.read(tmp_path / "best.ckpt")["update"] == 20


def test_after_the_best_checkpoint_is_removed_the_best_later_one_is_kept(tmp_path: Path, task: TranslationTask) -> None:
    callback = CheckpointWriter(tmp_path)
    validate(callback, task, 10, 9.0)
    (tmp_path / "best.ckpt").unlink()
    validate(callback, task, 20, 5.0)
    validate(callback, task, 30, 4.0)
    assert container.read(tmp_path / "best.ckpt")["update"] == callback.best_update == 20


@pytest.mark.parametrize("lost", ["folder", "config.yaml", "text", "text/dev.de"])
def test_a_folder_that_is_moved_or_loses_a_file_during_a_run_is_restored(
    tmp_path: Path, task: TranslationTask, lost: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "diglot")
    monkeypatch.setattr(folders, "locked_folders", [])
    folder = tmp_path / "run"
    folder.mkdir()
    folders.lock_folder(folder)
    files = {folder / "text" / "dev.de": b"eins\n", folder / "config.yaml": b"seed: 1\n"}
    folders.write_missing(files)
    console.log_to(folder / "log.txt")
    callback = CheckpointWriter(folder, restore=partial(folders.restore_folder, folder, files))
    validate(callback, task, 10, 9.0)
    (folder if lost == "folder" else folder / lost).rename(tmp_path / "moved")
    validate(callback, task, 20, 5.0)
    validate(callback, task, 30, 4.0)
    logging.getLogger("diglot").handlers.pop().close()
    assert {file: file.read_bytes() for file in files} == files
    log = (folder / "log.txt").read_text(encoding="utf-8")
    assert len(log.splitlines()) == 1
    assert (f"{folder} is missing; it is created again" if lost == "folder" else "missing from") in log
    assert callback.best_update == (20 if lost == "folder" else 10)
    assert container.read(folder / "last.ckpt")["update"] == 30
    assert folders.is_folder_locked(folder)
    for descriptor in folders.locked_folders:
        os.close(descriptor)


def test_a_folder_that_another_process_now_uses_is_left_alone(
    tmp_path: Path, task: TranslationTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    files = {folder / "config.yaml": b"seed: 1\n"}
    callback = CheckpointWriter(folder, restore=partial(folders.restore_folder, folder, files))
    others: list[int] = []
    monkeypatch.setattr(folders, "locked_folders", others)
    folders.lock_folder(folder)
    monkeypatch.setattr(folders, "locked_folders", [])
    with pytest.raises(UserError, match="another process is training in it"):
        validate(callback, task, 10, 9.0)
    assert names(folder) == []
    os.close(others[0])


def test_a_run_resumes_from_the_newest_intact_checkpoint(tmp_path: Path) -> None:
    assert newest_intact(tmp_path) is None
    for name, update in (("best", 1), ("previous", 2), ("last", 3)):
        record = {"format": FORMAT, **{name: kinds[0]() for name, kinds in KINDS.items()}}
        content = {"diglot": record, "state_dict": {"w": torch.rand(1000)}, "global_step": update}
        AtomicCheckpointIO(read).save_checkpoint(content, tmp_path / f"{name}.ckpt")
    damaged = []
    for name, update in (("last", 3), ("previous", 2), ("best", 1)):
        found = newest_intact(tmp_path)
        assert found is not None
        path, content, told = found
        assert (path.name, content["global_step"]) == (f"{name}.ckpt", update)
        assert [line.split(":")[0] for line in told] == [f"checkpoint {file}" for file in damaged]
        damaged.append(path)
        flipped = bytearray(path.read_bytes())
        flipped[len(flipped) // 2] ^= 4
        path.write_bytes(flipped)
    with pytest.raises(UserError, match=r"last\.ckpt: damaged.*previous\.ckpt: damaged.*best\.ckpt: damaged"):
        newest_intact(tmp_path)


def test_a_run_resumes_through_our_own_reader(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    read = AtomicCheckpointIO(lambda path: {"read": path.name})
    assert read.load_checkpoint(path, weights_only=False) == {"read": "last.ckpt"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"ranks": {"x": [0.0], 4: [0.0]}},
        {"ranks": {4: ["x"]}},
        {"named": ["x/../../victim"]},
        {"named": 3},
        {"best_score": None},
        {"best_update": "zz"},
        {"best_metrics": {"dev/bleu": "x"}},
    ],
)
def test_a_malformed_state_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="no run can resume from this checkpoint"):
        CheckpointWriter(tmp_path).load_state_dict({**CheckpointWriter(tmp_path).state_dict(), **wrong})


def test_a_process_that_resumes_from_another_update_than_the_first_is_refused(task: TranslationTask) -> None:
    other: Any = SimpleNamespace(broadcast=lambda _: 1200)
    trainer: Any = SimpleNamespace(global_step=0, global_rank=1, world_size=2, strategy=other, optimizers=[])
    with pytest.raises(UserError, match="process 2 of 2 would resume from update 0, but the first from 1,200"):
        MissedValidation(CheckpointWriter(Path()), 9).on_train_start(trainer, task)
