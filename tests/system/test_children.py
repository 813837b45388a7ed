"""Processes that collate and tokenise, also on systems other than Linux."""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from diglot.data.batch import Pairs
from diglot.data.batching import MicroBatch
from diglot.data.flat import FlatIds
from diglot.data.module import TimedLoader
from diglot.system import children
from diglot.system.children import end_with_parent, how_it_ended, n_cores


@pytest.fixture(autouse=True)
def no_quota(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(children, "CGROUPS", tmp_path)
    return tmp_path / "cpu.max"


def test_cores_are_those_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "process_cpu_count", lambda: 5, raising=False)  # Python 3.13 and later
    assert n_cores() == 5
    monkeypatch.delattr(os, "process_cpu_count")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 3, 7}, raising=False)  # Linux
    assert n_cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)  # macOS
    assert n_cores() == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert n_cores() == 1


@pytest.mark.parametrize(
    ("quota", "cores"), [("250000 100000", 3), ("50000 100000", 1), ("max 100000", 6), ("900000 100000", 6), ("", 6)]
)
def test_cores_are_no_more_than_the_quota_of_a_container(
    monkeypatch: pytest.MonkeyPatch, no_quota: Path, quota: str, cores: int
) -> None:
    monkeypatch.setattr(os, "process_cpu_count", lambda: 6, raising=False)
    no_quota.write_text(quota)
    assert n_cores() == cores


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (0, "ended without results"),
        (3, "failed with exit status 3"),
        (-signal.SIGKILL, "was killed by SIGKILL"),
        (128 + signal.SIGTERM, "was stopped by SIGTERM"),
    ],
)
def test_an_exit_status_is_described_in_words(status: int, said: str) -> None:
    assert how_it_ended(status) == said


@pytest.fixture
def start_method(request: pytest.FixtureRequest) -> Iterator[str]:
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method(request.param, force=True)
    yield request.param
    multiprocessing.set_start_method(before, force=True)


@pytest.mark.reliability
@pytest.mark.parametrize("start_method", ["spawn", "forkserver"], indirect=True)  # macOS; Python 3.14 on Linux
def test_batches_are_collated_by_processes_that_are_not_forked(start_method: str) -> None:
    ids = FlatIds.from_sequences([[5, 6], [7], [8, 9, 10]], 20)
    pairs, batches = Pairs(ids, ids), [MicroBatch(np.array([i]), 0, 0.0, 0, 1) for i in range(3)]
    loader = TimedLoader(
        pairs, sampler=batches, batch_size=None, num_workers=1, persistent_workers=True, worker_init_fn=end_with_parent
    )
    assert [batch.src.tolist() for batch in loader] == [pairs[batch].src.tolist() for batch in batches]
