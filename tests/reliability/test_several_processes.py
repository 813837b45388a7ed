"""Several processes end together if one fails, and give the same result as a single process."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from diglot.data.text import read_lines, write_bytes
from runs import FAULT, TINY, TWO, Run, after_the_fault, is_whole, run, text, weights

pytestmark = [pytest.mark.reliability, pytest.mark.end_to_end]

TIMEOUT = 60  # seconds; also enough for the rendezvous on a busy machine
OUTSIDE = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
WAITS = "got no answer from another one"


def cases() -> list:
    """Return all combinations of fault, place, rank and launcher; all but a few are marked as exhaustive."""
    quick = {
        ("kill", "1", "begin", "lightning"),
        ("kill", "0", "4", "lightning"),
        ("stop", "0", "4", "lightning"),
        ("hang", "1", "validation", "lightning"),
        ("raise", "1", "prepare", "torchrun"),
    }
    found = []
    for launcher in ("lightning", "torchrun"):
        for kind in ("kill", "raise", "hang", "stop"):
            for rank in ("0", "1"):
                for where in ("begin", "prepare", "4", "validation"):
                    case = (kind, rank, where, launcher)
                    # With Lightning's launcher, only the first process exists before training.
                    if launcher == "lightning" and rank == "0" and where in ("begin", "prepare"):
                        continue
                    found.append(pytest.param(*case, marks=() if case in quick else pytest.mark.exhaustive))
    return found


@pytest.mark.promise(
    "If one of several processes dies, raises an error, hangs or is stopped, all of them end within "
    "trainer.process_timeout plus 30 seconds, with one clear line and a nonzero exit status."
)
@pytest.mark.parametrize(("kind", "rank", "where", "launcher"), cases())
def test_one_that_fails_ends_the_job(tmp_path: Path, kind: str, rank: str, where: str, launcher: str) -> None:
    words = (*text(tmp_path), *TINY, *TWO, FAULT, "run.updates=8", "run.validate_every=3")
    module = OUTSIDE if launcher == "torchrun" else ()
    timeout = TIMEOUT if kind in ("hang", "stop") else 300  # a process that has ended is not waited for
    begun = Run(tmp_path, *words, f"trainer.process_timeout={timeout}", module=module, FAULT=f"{kind}:{rank}:{where}")
    ended = begun.end(300)
    assert not ended.orphans, ended.said
    assert ended.code not in (0, None), ended.said
    assert (tmp_path / "broken").exists(), ended.said
    # torchrun waits another 30 s for a process that is stopped before the rendezvous.
    unknown = (launcher, kind, where) == ("torchrun", "stop", "begin")
    assert after_the_fault(ended, tmp_path, begun) < TIMEOUT + 30 + 30 * unknown, ended.said
    if kind == "raise":  # the process reports its own error
        assert "injected" in ended.said
    elif launcher == "lightning":  # torchrun prints many lines
        (line,) = ended.lines("diglot-train: ")
        assert "Traceback" not in ended.said
        assert where in ("begin", "prepare") or (WAITS in line and "resume=" in line)
    if where in ("4", "validation"):
        assert is_whole(tmp_path / "run"), ended.said


def counts(folder: Path, rank: int) -> list[list]:
    """Return update, pairs and whether they count, for each batch of a process."""
    return [json.loads(line) for line in (folder / f"updates.{rank}").read_text().splitlines()]


@pytest.mark.promise(
    "If data cannot be divided equally among the processes, none of them hangs, and all make the same updates and have"
    " the same weights."
)
@pytest.mark.parametrize(
    ("n_train", "n_dev", "n_processes"),
    [
        (1, 1, 2),  # one process has no rows in training and validation
        pytest.param(2, 1, 3, marks=pytest.mark.exhaustive),
        pytest.param(3, 2, 2, marks=pytest.mark.exhaustive),
        pytest.param(7, 2, 3, marks=pytest.mark.exhaustive),
    ],
)
def test_uneven_data(tmp_path: Path, n_train: int, n_dev: int, n_processes: int) -> None:
    words = (*text(tmp_path, n_dev, n_train), *TINY, *TWO[:2], f"trainer.devices={n_processes}", FAULT)
    words += ("+callbacks.weights._target_=faults.Weights", "trainer.process_timeout=60")
    run(tmp_path, *words, "run.updates=4", "run.validate_every=2")
    shares = [counts(tmp_path, rank) for rank in range(n_processes)]
    assert [[line[0] for line in share] for share in shares] == [[1, 2, 3, 4]] * n_processes
    for lines in zip(*shares, strict=True):
        counted = [pair for _, pairs, counts in lines for pair in pairs if counts]
        assert len(counted) == len(set(counted)) >= 1
    final = [torch.load(tmp_path / f"weights.{rank}", weights_only=True) for rank in range(n_processes)]
    saved = weights(tmp_path / "run")
    for other in final:
        assert all(torch.equal(value, other[name]) for name, value in saved.items())


@pytest.mark.promise(
    "The BLEU of several processes equals that of a single process, because each sentence counts once."
)
@pytest.mark.parametrize("n_processes", [3, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_bleu_is_that_of_one_process(
    tmp_path: Path, n_processes: int, scores: Callable[[], tuple[str, list[str]]]
) -> None:
    words = (*text(tmp_path, n_dev=13), *TINY, "trainer.process_timeout=60", "run.updates=2", "model.dropout=0")
    alone = scores()
    run(tmp_path, *words, *TWO[:2], f"trainer.devices={n_processes}")
    assert score_of(tmp_path) == alone
    assert len(alone[1]) == 13


@pytest.fixture(scope="module")
def scores(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], tuple[str, list[str]]]:
    folder = tmp_path_factory.mktemp("alone")
    run(folder, *text(folder, n_dev=13), *TINY, "run.updates=2", "model.dropout=0")
    return lambda: score_of(folder)


def score_of(folder: Path) -> tuple[str, list[str]]:
    (line,) = [line for line in (folder / "output").read_text().splitlines() if line.startswith("update 2 of 2")]
    return line.partition("dev BLEU")[2], read_lines(folder / "run" / "text" / "dev.translated.de")


@pytest.mark.promise(
    "If one of several processes gets a signal, or all of them do, all end in less than 30 seconds, with an intact "
    "checkpoint and exit status 75."
)
@pytest.mark.parametrize(
    "to",
    [
        "group",
        *(
            pytest.param(to, marks=pytest.mark.exhaustive)
            for to in ("first", "second", "both", "torchrun second", "torchrun")
        ),
    ],
)
def test_a_signal(tmp_path: Path, to: str) -> None:
    words = (*text(tmp_path), *TINY, *TWO, FAULT, "run.updates=100000", "run.validate_every=20")
    module = OUTSIDE if to.startswith("torchrun") else ()
    begun = Run(tmp_path, *words, "trainer.process_timeout=60", module=module)
    numbers = [tmp_path / f"updates.{rank}" for rank in (0, 1)]
    deadline = time.monotonic() + 100
    while not all(file.exists() and file.read_text().count("\n") > 45 for file in numbers):
        assert begun.process.poll() is None, (tmp_path / "output").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    sent = time.monotonic()
    ranks = {}
    for process in begun.processes():
        environment = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        is_torchrun = b"torch.distributed.run" in Path(f"/proc/{process}/cmdline").read_bytes()
        ranks["torchrun" if is_torchrun else "second" if b"LOCAL_RANK=1" in environment else "first"] = process
    match to:
        case "group":
            os.killpg(begun.process.pid, signal.SIGTERM)
        case "both":
            for process in ranks.values():
                os.kill(process, signal.SIGTERM)
        case _:
            os.kill(ranks[to.split()[-1]], signal.SIGTERM)
    ended = begun.end(60)
    assert time.monotonic() - sent < 30, ended.said
    assert not ended.orphans
    assert ended.code == 75 or module, ended.said
    assert ended.said.count("Stopped by SIGTERM at update") == 1, ended.said
    assert "Traceback" not in ended.said or module
    assert is_whole(tmp_path / "run")


@pytest.mark.promise(
    "All processes of a run train with the config that the first one composed, even if its files change meanwhile."
)
def test_a_choice_that_is_edited_in_mid_start_is_the_one_that_was_read(tmp_path: Path) -> None:
    choice = tmp_path / "conf" / "experiment" / "mine.yaml"
    choice.parent.mkdir(parents=True)
    choice.write_text("# @package _global_\nmodel: {n_encoder_layers: 1}\n")
    words = ("--config-dir", "conf", *text(tmp_path), *TINY, *TWO, "experiment=mine", "run.updates=2")
    words += ("+callbacks.edit._target_=faults.Edit", "trainer.process_timeout=60")
    run(tmp_path, *words, EDIT=str(choice), OLD="layers: 1", NEW="layers: 2")
    assert "layers: 2" in choice.read_text()
    assert "n_encoder_layers: 1" in (tmp_path / "run" / "config.yaml").read_text()


@pytest.mark.promise(
    "All processes of a run resume from the checkpoint that the first one found, even if its files change meanwhile."
)
@pytest.mark.parametrize(
    ("word", "module"),
    [("resume=auto", ()), ("resume=run", ()), pytest.param("resume=auto", OUTSIDE, marks=pytest.mark.exhaustive)],
)
def test_all_go_on_where_the_first_one_does(tmp_path: Path, word: str, module: tuple[str, ...]) -> None:
    words = (
        *text(tmp_path),
        *TINY,
        *TWO,
        FAULT,
        "run.updates=6",
        "run.validate_every=2",
        "trainer.process_timeout=120",
    )
    run(tmp_path, *words, code=-9, FAULT="kill:0:5")
    (tmp_path / "run" / "last.ckpt").unlink()
    (tmp_path / "run" / "composed.yaml").unlink()
    if word == "resume=run":
        words = tuple(each for each in words if each != "run.folder=run")
    begun = Run(tmp_path, *words, word, module=module)
    carried = tmp_path / "run" / "composed.yaml"
    while word == "resume=run" and begun.process.poll() is None:
        if carried.exists():  # imitates a sweep, which rewrites this file for an unfinished job
            assert "\nresume: run\n" in carried.read_text()
            write_bytes(carried, carried.read_bytes().replace(b"\nresume: run\n", b"\nresume: null\n"))
            break
        time.sleep(0.02)
    ended = begun.end()
    assert (ended.code, ended.orphans) == (0, []), ended.said
    assert [[line[0] for line in counts(tmp_path, rank)[-2:]] for rank in (0, 1)] == [[5, 6], [5, 6]]


@pytest.mark.promise("A signal while the processes of a resumed run connect to each other ends it with exit status 75.")
def test_a_signal_before_the_processes_have_met(tmp_path: Path) -> None:
    words = (*text(tmp_path), *TINY, *TWO, "run.updates=100000", "run.validate_every=20", "trainer.process_timeout=60")
    for word, begun_when in (("run.folder=run", "last.ckpt"), ("resume=run", "composed.yaml")):
        (tmp_path / "run" / "composed.yaml").unlink(missing_ok=True)
        begun = Run(tmp_path, *(each for each in words if not each.startswith("run.folder=")), word)
        deadline = time.monotonic() + 100
        while not (tmp_path / "run" / begun_when).exists():
            assert begun.process.poll() is None, (tmp_path / "output").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(1.0 if word == "resume=run" else 0.0)  # while the second process is being started
        os.killpg(begun.process.pid, signal.SIGTERM)
        ended = begun.end(60)
        assert (ended.code, ended.orphans) == (75, []), ended.said
        assert "resume=run " in ended.said.splitlines()[-1]
        assert "topped by SIGTERM" in ended.said.splitlines()[-1]


@pytest.mark.promise("A run resumes with a different number of processes, and its updates equal those of one process.")
@pytest.mark.parametrize(("before", "after"), [((), TWO), (TWO, ())], ids=["1 to 2", "2 to 1"])
def test_a_run_goes_on_with_another_number_of_processes(
    tmp_path: Path, before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    words = (*text(tmp_path), *TINY, FAULT, "model.dropout=0", "run.updates=10", "run.validate_every=2")
    words += ("trainer.process_timeout=120",)
    whole, changed = tmp_path / "whole", tmp_path / "changed"
    whole.mkdir()
    run(whole, *words)
    changed.mkdir()
    run(changed, *words, *before, code=-9, FAULT="kill:0:5")
    others = tuple(word for word in words if word != "run.folder=run")
    said = run(changed, *others, *after, "resume=run").said
    assert "trainer.devices" in said, said  # the change is reported
    ours, theirs = weights(whole / "run"), weights(changed / "run")
    moved = max((theirs[name] - ours[name]).abs().max().item() for name in ours)
    assert moved < 1e-9  # in float64, because gradients are summed in another order
    translated = [read_lines(folder / "run" / "text" / "dev.translated.de") for folder in (whole, changed)]
    assert translated[0] == translated[1]
