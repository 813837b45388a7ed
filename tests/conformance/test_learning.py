"""Tests of `make conformance`: train two cells, and check that results cannot be lost, confused or hidden."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from multiprocessing import Value
from pathlib import Path
from typing import Any

import learning
import pytest
import torch
from learning import FIRST_SYMBOL, SPECIAL, TASKS, Cell, Settings
from PIL import Image
from torch import Tensor

SETTINGS = Settings()
ROTARY, NONE, LEARNED = Cell("rotary", "pre_norm"), Cell("none", "pre_norm"), Cell("learned", "post_norm")


def result(**exact_match: float) -> dict[str, Any]:
    """Return the result of a cell with exact match 1 at all lengths, except for the tasks given."""
    shares = {task: [exact_match.get(task, 1.0)] * SETTINGS.tested for task in TASKS}
    numbers = {"tokens_per_second": 1000, "megabytes": 400, "parameters": 376_224, "seconds": 120.0}
    words = {"machine": "a machine", "date": "2026-01-02"}
    return {"exact_match": shares, "updates": SETTINGS.updates, **numbers, **words}


def keep(folder: Path, cell: Cell, found: dict[str, Any], settings: Settings = SETTINGS) -> None:
    print_ = learning.fingerprint(cell, settings, learning.sources())
    learning.file_of(cell, folder).write_text(json.dumps({"fingerprint": print_, **found}))


def all_right(cell: Cell, settings: Settings, done: Any) -> dict[str, Any]:
    return result()


def crashing(cell: Cell, settings: Settings, done: Any) -> dict[str, Any]:
    if cell == ROTARY:
        raise ValueError("no such thing\nas this")
    if cell == LEARNED:
        os.kill(os.getpid(), signal.SIGKILL)
    return result()


@pytest.mark.exhaustive
def test_two_cells_learn_what_they_can_and_no_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Use shorter sentences and fewer symbols than `make conformance`, so that half a minute is enough.

    Here, guessing the order of known symbols gives 0.38; 0.45 is five standard deviations above.
    """
    sizes = {"n_symbols": 8, "trained": 5, "tested": 12, "rows": 12, "samples": (400, 20)}
    quick = replace(SETTINGS, **sizes, updates=500, rate=3e-3, warmup=50, failed=0.45)
    assert learning.chance(quick) == pytest.approx(0.38, abs=0.01)
    status = learning.main(tmp_path, tmp_path, [ROTARY, NONE], quick)
    said = capsys.readouterr().out
    assert status == 0, said
    found = {cell: json.loads(learning.file_of(cell, tmp_path).read_bytes()) for cell in (ROTARY, NONE)}
    reached = {
        cell: {task: learning.on_trained_lengths(each, quick, task) for task in TASKS} for cell, each in found.items()
    }
    assert all(share >= 0.99 for share in reached[ROTARY].values()), said
    assert max(reached[NONE]["copy"], reached[NONE]["reverse"]) < 0.45, said
    assert all(each["updates"] == 500 and each["tokens_per_second"] > 0 for each in found.values())


def test_sentences_are_what_the_tasks_ask_for() -> None:
    symbols = torch.tensor([[2, 0, 2, 1, 5]] * 3)
    rows = learning.sentences(torch.arange(3), symbols, torch.tensor([5, 4, 3]))
    a, eos, pad, bos = FIRST_SYMBOL, SPECIAL.eos, SPECIAL.pad, SPECIAL.bos
    assert rows.src.tolist() == [
        [4, a + 2, a, a + 2, a + 1, a + 5, eos],
        [5, a + 2, a, a + 2, a + 1, eos, pad],
        [6, a + 2, a, a + 2, eos, pad, pad],
    ]
    assert rows.labels.tolist() == [
        [a + 2, a, a + 2, a + 1, a + 5, eos],
        [a + 1, a + 2, a, a + 2, eos, pad],
        [a, a + 2, a + 2, eos, pad, pad],
    ]
    assert rows.tgt_in[1].tolist() == [bos, a + 1, a + 2, a, a + 2, pad]
    assert rows.src_mask.sum(1).tolist() == [7, 6, 5]
    assert rows.tgt_mask.sum(1).tolist() == [6, 5, 4]


def test_batches_are_a_function_of_seed_and_update() -> None:
    first = learning.batch(SETTINGS, 7)
    torch.manual_seed(99)
    assert all(torch.equal(a, b) for x, y in zip(first, learning.batch(SETTINGS, 7)) for a, b in zip(x, y))
    for other in (learning.batch(SETTINGS, 8), learning.batch(replace(SETTINGS, seed=2), 7)):
        assert not torch.equal(first[1].src, other[1].src)
    lengths = torch.cat([part.tgt_mask.sum(1) for part in first]) - 1
    assert lengths.bincount().tolist() == [0, *[SETTINGS.rows] * SETTINGS.trained]
    tags = torch.cat([part.src[:, 0] for part in first])
    assert set(tags.tolist()) == {4, 5, 6}


class Knowing:
    """Fake model that gives the right answers, except for the task `fails_at`."""

    def __init__(self, fails_at: int | None = None, max_positions: int | None = None) -> None:
        self.fails_at, self.max_src_positions, self.max_tgt_positions = fails_at, max_positions, None

    def eval(self) -> None: ...

    def encode(self, src: Tensor, src_mask: Tensor) -> Tensor:
        """Return the answers (B, S)."""
        tasks = src[:, 0] - learning.FIRST_TAG
        answers = learning.sentences(tasks, src[:, 1:-1] - FIRST_SYMBOL, src_mask.sum(1) - 2).labels
        if self.fails_at is not None:
            answers[tasks == self.fails_at, -2] = FIRST_SYMBOL + SETTINGS.n_symbols  # replaces the last symbol
        return answers

    def new_cache(self) -> "Knowing":
        self.n_said = 0
        return self

    def select(self, hypotheses: Tensor, sentences: Tensor | None = None) -> None: ...

    def decode(self, tgt: Tensor, memory: Tensor, src_mask: Tensor, cache: "Knowing") -> Tensor:
        said = memory[:, self.n_said, None]
        self.n_said += 1
        return torch.nn.functional.one_hot(said, FIRST_SYMBOL + SETTINGS.n_symbols + 1).float() * 20


def test_exact_match_counts_whole_outputs_and_stops_where_positions_end() -> None:
    small = replace(SETTINGS, trained=3, tested=6, samples=(5, 2))
    model: Any = Knowing()
    assert learning.exact_match(model, small) == dict.fromkeys(TASKS, [1.0] * 6)
    model = Knowing(fails_at=1, max_positions=6)  # tag, 4 symbols and </s>
    known, beyond = [1.0] * 4, [None] * 2
    assert learning.exact_match(model, small) == {
        "copy": known + beyond,
        "reverse": [0.0] * 4 + beyond,
        "sort": known + beyond,
    }


def test_training_stops_when_its_time_is_up() -> None:
    model, done = ROTARY.build(SETTINGS), Value("l", 0)
    now = time.process_time()
    assert learning.train(model, replace(SETTINGS, seconds=now + SETTINGS.for_test), done)[0] == 0
    assert learning.train(model, replace(SETTINGS, updates=2, rows=2, seconds=now + 999), done)[0] == done.value == 2


def test_each_file_of_the_config_is_a_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {cell.name for cell in learning.cells()}
    assert {"rotary x pre_norm", "none x post_norm", "learned x post_norm"} <= names
    for name in ("position/one", "position/two", "residual/other", "gru_attention", "base"):
        path = tmp_path / "model" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.setattr(learning, "CONF", tmp_path)
    assert [cell.name for cell in learning.cells()] == ["one x other", "two x other", "gru_attention"]


def test_models_have_the_settings_sizes_and_a_table_for_the_training_lengths() -> None:
    learned, rotary = LEARNED.build(SETTINGS), ROTARY.build(SETTINGS)
    assert learned.max_src_positions == learned.max_tgt_positions == SETTINGS.trained + 2
    assert rotary.max_src_positions is None
    assert learned.d_model == rotary.d_model == SETTINGS.d_model
    assert len(rotary.encoder) == SETTINGS.n_layers
    assert all(m.p == 0 for m in rotary.modules() if isinstance(m, torch.nn.Dropout))


def test_a_finished_cell_is_kept_and_a_stale_one_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a result is used only if its fingerprint matches this cell, these settings and these sources."""
    keep(tmp_path, ROTARY, result())
    files = learning.sources()
    assert learning.read(ROTARY, SETTINGS, files, tmp_path) is not None
    assert learning.read(ROTARY, replace(SETTINGS, updates=1), files, tmp_path) is None
    learning.file_of(NONE, tmp_path).write_bytes(learning.file_of(ROTARY, tmp_path).read_bytes())
    assert learning.read(NONE, SETTINGS, files, tmp_path) is None
    learning.file_of(NONE, tmp_path).write_text('{"fingerprint": ')  # truncated
    assert learning.read(NONE, SETTINGS, files, tmp_path) is None
    source = tmp_path / "model.py"
    source.write_text("before")
    monkeypatch.setattr(learning, "SOURCES", (*learning.SOURCES, source))
    before = learning.sources()
    source.write_text("after")
    assert len({files, before, learning.sources()}) == 3


def test_the_sources_that_matter_are_all_there() -> None:
    paths = [learning.PACKAGE / name for name in learning.SOURCES]
    assert all(path.is_file() or any(path.rglob("*.py")) or any(path.rglob("*.yaml")) for path in paths), paths


@pytest.mark.reliability
@pytest.mark.end_to_end
def test_a_crash_is_one_line_and_the_others_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alibi = Cell("alibi", "pre_norm")
    keep(tmp_path, alibi, result(copy=0.0), replace(SETTINGS, seed=2))  # other settings, so it is computed again
    assert learning.main(tmp_path, tmp_path, [ROTARY, LEARNED, alibi], SETTINGS, crashing) == 1
    said = capsys.readouterr().out
    log = tmp_path / "rotary-pre_norm.log"
    assert f"\nrotary x pre_norm: failed with exit status 1: ValueError: no such thing ({log})\n" in said
    assert "\nlearned x post_norm: was killed by SIGKILL (" in said
    assert "Traceback" in log.read_text()
    assert "Traceback" not in said
    assert "alibi x pre_norm: passed, 120 s" in said
    table = (tmp_path / "conformance.md").read_text()
    assert re.findall(r"\| (\w+) .* (CRASHED|passed) *\|\n", table) == [
        *(("rotary", "CRASHED"), ("learned", "CRASHED"), ("alibi", "passed"))
    ]
    # The same command computes the two failed cells and reuses the third.
    kept = state(learning.file_of(alibi, tmp_path))
    assert learning.main(tmp_path, tmp_path, [ROTARY, LEARNED, alibi], SETTINGS, all_right) == 0
    assert "3 cells, 1 of them finished before" in capsys.readouterr().out
    assert state(learning.file_of(alibi, tmp_path)) == kept


def state(file: Path) -> tuple[int, int]:
    return file.stat().st_ino, file.stat().st_mtime_ns


def test_a_folder_that_cannot_be_made_is_said_before_anything_is_computed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert learning.main(tmp_path / "file", tmp_path, [ROTARY], SETTINGS, crashing) == 2
    assert capsys.readouterr().out == f"{tmp_path / 'file'}: cannot be made: File exists\n"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("cell", "found", "status", "line"),
    [
        (ROTARY, result(), 0, "passed"),
        (ROTARY, result(reverse=0.9895), 1, "MISSED: reverse 0.9895"),
        (ROTARY, result(copy=0.5, sort=0.0), 1, "MISSED: copy 0.5000, sort 0.0000"),
        (ROTARY, result() | {"updates": 1234}, 0, "passed (time was up at update 1,234 of 1,900)"),
        (NONE, result(copy=0.19, reverse=0.0), 0, "fails at copy and reverse, as it must"),
        (NONE, result(copy=0.19, reverse=0.2), 1, "MISSED, too good for a model that cannot see order: reverse 0.2000"),
    ],
)
def test_what_a_cell_does_is_shown_and_is_the_exit_status(
    cell: Cell, found: dict[str, Any], status: int, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(tmp_path, cell, found)
    keep(tmp_path, LEARNED, result())
    assert learning.main(tmp_path / "shown", tmp_path, [cell, LEARNED], SETTINGS) == status
    table = (tmp_path / "shown" / "conformance.md").read_text()
    assert re.search(rf"^\| {cell.position} .*\| {re.escape(line)} +\|$", table, re.MULTILINE), table
    said = capsys.readouterr().out
    assert table in said
    assert (f"\n{cell.name}: {line}\n" in said) == (status == 1)


def test_the_table_and_the_picture(tmp_path: Path) -> None:
    found = result(copy=1.0)
    for task in TASKS:
        found["exact_match"][task][10:] = [None] * 20
    keep(tmp_path, LEARNED, found)
    found = result()
    for task, share in zip(TASKS, (0.9, 0.6, 0.0)):
        found["exact_match"][task][10:15] = [share] * 5
    keep(tmp_path, ROTARY, found)
    learning.main(tmp_path, tmp_path, [LEARNED, ROTARY], SETTINGS)
    text = (tmp_path / "conformance.md").read_text()
    rows = [re.split(r" *\| *", line.strip("| ")) for line in text.splitlines() if line.startswith("|")]
    numbers = ["1,000", "400", "376,224", "120", "passed"]
    assert rows[0] == list(learning.COLUMNS)
    assert rows[2] == ["learned", "post_norm", *["1.0000"] * 3, *["n/a"] * 3, *numbers]
    assert rows[3] == ["rotary", "pre_norm", *["1.0000"] * 3, "0.50", "1.00", "1.00", *numbers]
    assert "on a machine" in text.replace("\n", " ")
    with Image.open(tmp_path / "conformance.png") as picture:
        assert picture.width > 1000


@pytest.mark.reliability
@pytest.mark.end_to_end
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_it_can_be_stopped_and_leaves_nobody_behind(number: int, status: int, tmp_path: Path) -> None:
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    # Tests that run in the background of a script inherit that SIGINT is ignored.
    heeding = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}
    command = [sys.executable, learning.__file__]
    process = subprocess.Popen(command, cwd=tmp_path, start_new_session=True, **output, **heeding)
    try:
        stop(process, number, status)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def stop(process: subprocess.Popen, number: int, status: int) -> None:
    assert process.stdout is not None
    while not process.stdout.readline().endswith("...\n"):
        assert process.poll() is None
    time.sleep(1)
    begin = time.monotonic()
    # Ctrl-C sends SIGINT to all processes of a terminal; the other signals go to one process.
    (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
    assert process.wait(60) == status
    if number != signal.SIGKILL:
        said = process.stdout.read()
        assert "the same command resumes" in said
        assert "Traceback" not in said
    while time.monotonic() - begin < 90:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail("a process was left behind")
