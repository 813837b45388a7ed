"""Interrupt runs at arbitrary points, resume them, and compare the result with an uninterrupted run.

A "life" is one process of a run. A kill, a signal or another fault ends it, and the next life resumes the run. Lives
are forked from a process that has already imported everything, so that training starts within a second.
"""

import ctypes
import hashlib
import io
import json
import multiprocessing
import multiprocessing.synchronize
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import diglot.commands.train  # noqa: E402
from diglot.checkpoint import container  # noqa: E402
from diglot.checkpoint import file as checkpoint  # noqa: E402
from diglot.checkpoint.atomic_io import AtomicCheckpointIO  # noqa: E402
from diglot.errors import RESUME_ME  # noqa: E402
from diglot.runs import conclusion, plan  # noqa: E402
from diglot.system.interruption import STOP_SIGNALS, raise_on_signal  # noqa: E402
from support.commands import scalars  # noqa: E402

HERE = Path(__file__).parent
RECORD = "recorded.jsonl"
OPERATIONS = "halves of operations on files: "


class Recorder(L.Callback):
    """Callback that records each micro-batch with its exact loss and learning rate."""

    def setup(self, *_: Any, **__: Any) -> None:
        strike_here("setup", 0)

    def teardown(self, *_: Any, **__: Any) -> None:
        strike_here("teardown", 0)

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, index: int) -> None:
        within = index % trainer.accumulate_grad_batches
        strike_here("update" if within == 0 else "accumulation", trainer.global_step)

    def on_validation_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
        strike_here("validation", trainer.global_step)

    def on_train_start(self, *_: Any) -> None:
        self._write("began", time.time())

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        pairs = batch.pairs.tolist() if batch.tgt_mask.any() else []
        rate = trainer.optimizers[0].param_groups[0]["lr"]
        self._write(batch.position, int(batch.passes * 1e9), pairs, float(outputs["loss"]).hex(), float(rate).hex())

    def _write(self, *values: Any) -> None:
        # A single write, so that a kill leaves a complete line or none.
        rank = os.environ.get("LOCAL_RANK", "0")
        descriptor = os.open(f"{os.environ['RECORDED_IN']}.{rank}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, (json.dumps(values) + "\n").encode())
        os.close(descriptor)


class Held(L.Callback):
    """Callback that records the memory in bytes, open files and temporary files of the process every 1,000 updates."""

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.global_step % 1000 == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            files = len(list(Path("/proc/self/fd").iterdir()))
            temporary = len(list(Path(trainer.default_root_dir).glob(".*")))
            with Path(f"{os.environ['RECORDED_IN']}.0").open("a") as file:
                file.write(
                    json.dumps([trainer.global_step, pages * os.sysconf("SC_PAGE_SIZE"), files, temporary]) + "\n"
                )


def strike_here(within: str, update: int) -> None:
    """Send this process the signal in STRIKE, if it is meant for this point."""
    asked = os.environ.get("STRIKE", "").split()
    if asked and asked[:2] == [within, str(update)]:
        del os.environ["STRIKE"]
        for _ in range(int(asked[3])):
            os.kill(os.getpid(), int(asked[2]))


def struck(within: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that this process gets the signal in STRIKE at its start, if it is meant for this point."""

    def call(*arguments: Any, **options: Any) -> Any:
        strike_here(within, 0)
        return function(*arguments, **options)

    return call


class Fault(NamedTuple):
    """A signal that ends a life early.

    Attributes:
        number: number of the signal; SIGKILL cannot be handled.
        seconds: time of the signal, counted from the start of training, or of the process if `at_once` is set.
        at_once: whether the time counts from the start of the process.
        operation: instead of a time, the number (from 1) of the point in the life's file operations; see `strike`.
            0: no signal; the points are only counted.
        update: instead of a time, the number of an update.
        within: the point at that update: update (the update and all that follows it are done, and the next has not
            started), accumulation (in the middle of the next update), validation (after this update), or save (in the
            middle of writing checkpoint number `update`; needs operation=0). With update=0: preparation (the data are
            ready), setup (before training), teardown (after training), or end (at the evaluation on the test text).
        again: seconds after which the signal is sent a second time.
    """

    number: int
    seconds: float = 0.0
    at_once: bool = False
    operation: int | None = None
    update: int | None = None
    within: str = "update"
    again: float | None = None

    def __str__(self) -> str:
        name = signal.Signals(self.number).name
        if self.operation is not None:
            return f"{name}@operation{self.operation}"
        if self.update is not None:
            return f"{name}@{self.within}{self.update}"
        twice = "" if self.again is None else f"+{self.again:.3f}"
        return f"{name}@{'start' if self.at_once else 'training'}+{self.seconds:.3f}{twice}"


@dataclass
class Life:
    """The end of a life.

    Attributes:
        status: exit status of the process; negative: the signal that killed it.
        said: standard output and standard error.
        seconds: time from fork to end.
        orphans: processes that it left behind.
    """

    status: int
    said: str
    seconds: float
    orphans: list[int] = field(default_factory=list)


def strike(number: int, at: int) -> Callable[[], int]:
    """Arrange that this process gets a signal during its file operations.

    The possible points are before and after each call of fsync, replace, rename, link and unlink, and in the middle of
    writing each checkpoint.

    Args:
        number: number of the signal.
        at: number of the point, from 1.

    Returns:
        A function that returns the number of points so far.
    """
    count, saves = 0, list[int]()

    def half() -> None:
        nonlocal count
        count += 1
        if count == at:
            os.kill(os.getpid(), number)

    def struck(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            half()
            result = function(*arguments, **options)
            half()
            return result

        return call

    for name in ("fsync", "replace", "rename", "link", "unlink"):
        setattr(os, name, struck(getattr(os, name)))
    write = container.write

    def torn(content: Any, file: Any) -> None:
        whole = io.BytesIO()
        write(content, whole)
        saves.append(middle := whole.tell() // 2)
        file.write(whole.getvalue()[:middle])
        half()
        strike_here("save", len(saves))
        file.write(whole.getvalue()[middle:])

    container.write = torn
    return lambda: count


def live(
    words: list[str],
    folder: Path,
    said: Path,
    fault: Fault | None,
    change: Callable[[], None] | None,
    has_begun: multiprocessing.synchronize.Event,
) -> None:
    """Run diglot-train in a new process."""
    os.setsid()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: no life outlives the server
    descriptor = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    multiprocessing.set_start_method("fork", force=True)  # the default in a normal process
    os.chdir(folder)
    os.environ["RECORDED_IN"] = str(folder / RECORD)
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    raise_on_signal()  # as all commands do
    counted = None
    if fault is not None and fault.update is not None:
        twice = 1 + (fault.again is not None)
        os.environ["STRIKE"] = f"{fault.within} {fault.update} {int(fault.number)} {twice}"
    if fault is not None and fault.operation is not None:
        counted = strike(fault.number, fault.operation)
    if change is not None:
        change()
    plan.check_lengths = struck("preparation", plan.check_lengths)
    conclusion.evaluate = struck("end", conclusion.evaluate)
    sys.argv = ["diglot-train", *words]
    status = 1
    try:
        has_begun.set()
        diglot.commands.train.main()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            if counted:
                print(f"{OPERATIONS}{counted()}")
            sys.stdout.flush()
            sys.stderr.flush()
        finally:  # a signal that arrives this late has no effect
            os._exit(status)


_server = multiprocessing.get_context("forkserver")


def serve() -> None:
    """Configure the server process from which lives are forked."""
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = [str(HERE), str(HERE.parent), *before]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, dict.fromkeys(paths)))  # where it finds this file
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["HF_HUB_OFFLINE"] = "1"
    _server.set_forkserver_preload(["lives", *PRELOADED])


# Modules that a run imports lazily.
PRELOADED = [
    "lightning.pytorch.callbacks.weight_averaging",
    "matplotlib.backends.backend_agg",
    "matplotlib.pyplot",
    "sacrebleu",
    "sentencepiece",
    "tensorboard.summary",
    "torch.utils.tensorboard",
    "torch._dynamo",
    "torch.distributed",
]


def run(
    words: list[str],
    folder: Path,
    fault: Fault | None = None,
    change: Callable[[], None] | None = None,
    limit: float = 300.0,
) -> Life:
    """Run diglot-train in a new process until it ends, or a fault ends it.

    Args:
        words: arguments of the command.
        folder: working directory.
        fault: the fault that ends it; None: no fault.
        change: function called in the process before the command; it must be importable by name.
        limit: seconds after which a life counts as hanging.
    """
    serve()
    said, recorded = folder / "said.txt", folder / f"{RECORD}.0"
    said.write_bytes(b"")  # a life may end before it creates the file
    before = recorded.stat().st_size if recorded.exists() else 0
    has_begun = _server.Event()
    process = _server.Process(target=live, args=(words, folder, said, fault, change, has_begun))
    began = time.monotonic()
    process.start()
    assert process.pid is not None

    def ended(seconds: float) -> bool:
        process.join(max(0.0, seconds))
        return process.exitcode is not None

    if fault is not None and fault.operation is None and fault.update is None:
        while not has_begun.is_set() and not ended(0.005):
            assert time.monotonic() - began < limit
        while not fault.at_once and not ended(0.005) and time.monotonic() - began < limit:
            if recorded.exists() and recorded.stat().st_size > before:
                break
        for wait in (fault.seconds, fault.again):
            if wait is not None and not ended(wait):
                try:
                    os.kill(process.pid, fault.number)
                except ProcessLookupError:
                    break
    if not ended(began + limit - time.monotonic()):
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
        raise AssertionError(f"it hung for {limit:.0f} s\n{said.read_text()}")
    life = Life(process.exitcode or 0, said.read_text(errors="replace"), time.monotonic() - began)
    life.orphans = orphans(process.pid)
    process.close()
    return life


def of_session(number: int) -> list[int]:
    """Return the live processes of a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):
            continue
        if int(session) == number and state not in "ZX":
            found.append(int(stat.parent.name))
    return found


def orphans(session: int, patience: float = 20.0) -> list[int]:
    """Wait for the processes of a session, then kill and return those that remain.

    Loader workers only check from time to time whether their parent is alive.
    """
    deadline = time.monotonic() + patience
    while found := of_session(session):
        if time.monotonic() > deadline:
            for number in found:
                os.kill(number, signal.SIGKILL)
            return found
        time.sleep(0.1)
    return []


def save_for_ever(folder: Path, update: int, tmpdir: str | None, done: Any, change: Callable[[], None] | None) -> None:
    """Write one checkpoint after another, and send the number of each; meant for a separate process."""
    if tmpdir:
        os.environ["TMPDIR"] = tempfile.tempdir = tmpdir
    if change is not None:
        change()
    plugin = AtomicCheckpointIO(checkpoint.read)
    while True:
        update += 1
        plugin.save_checkpoint({"update": update, "weights": torch.full((300_000,), update)}, folder / "last.ckpt")
        done.send(update)


def saved(folder: Path) -> int:
    """Return the number of the checkpoint in a folder, or 0 if there is none, and check that it is complete."""
    if not (folder / "last.ckpt").exists():
        return 0
    content = container.read(folder / "last.ckpt")
    assert (content["weights"] == content["update"]).all()
    return content["update"]


def kill_savers(
    folder: Path, n_kills: int, seed: int, tmpdir: str | None, change: Callable[[], None] | None = None
) -> list[str]:
    """Repeatedly kill a process that writes checkpoints, and return a list of what went wrong."""
    serve()
    draw, wrong, told = random.Random(seed), list[str](), 0
    for i in range(n_kills):
        done, tells = multiprocessing.Pipe(duplex=False)
        process = _server.Process(target=save_for_ever, args=(folder, told, tmpdir, tells, change))
        process.start()
        tells.close()
        told = done.recv()
        deadline = time.monotonic() + draw.uniform(0, 0.1)
        while (left := deadline - time.monotonic()) > 0:
            if done.poll(left):
                told = done.recv()
        process.kill()
        process.join()
        try:
            while True:
                told = done.recv()
        except EOFError:
            pass
        try:
            if (found := saved(folder)) < told:
                wrong.append(f"kill {i}: {told} had been written, and {found} is there")
        except Exception as error:
            wrong.append(f"kill {i}: {error!r}")
    if extra := [file.name for file in folder.iterdir() if file.name != "last.ckpt"][1:]:  # the last kill may leave one
        wrong.append(f"left behind: {extra}")
    return wrong


# --- random runs and faults ---


def write_text(folder: Path, n_pairs: int = 203) -> list[str]:
    """Write a small corpus, and return the overrides that select it."""
    draw = random.Random(7)
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    words = ["".join(draw.choices(syllables, k=draw.randint(1, 3))) for _ in range(60)]
    overrides = ["data=files", "data.src_lang=de", "data.tgt_lang=en", "data.vocab_size=320", "data.max_len=40"]
    for split, n in (("train", n_pairs), ("dev", 6), ("test", 4)):
        sources = [" ".join(draw.choices(words, k=draw.randint(2, 9))) for _ in range(n)]
        for side, lines in (("src", sources), ("tgt", [" ".join(line.split()[::-1]) for line in sources])):
            file = folder / f"{split}.{side}"
            file.write_text("".join(f"{line}\n" for line in lines))
            overrides.append(f"data.{split}.{side}={file}")
    return [*overrides, f"data.cache_dir={folder / 'cache'}"]


SMALL = [
    "+callbacks.recorder._target_=lives.Recorder",
    "trainer=cpu",
    "trainer.log_every_n_steps=1",
    "model.d_model=16",
    "model.n_heads=2",
    "model.d_ff=24",
    "model.n_encoder_layers=1",
    "model.n_decoder_layers=1",
    "model.dropout=0.3",
    "search=greedy",
    "search.max_len_a=0",
    "search.max_len_b=5",
    "data.tokens_per_batch=150",
    "watch=none",
    "scheduler.lr=0.01",
    "run.passes=3",
]


def draw_words(draw: random.Random) -> list[str]:
    """Draw random settings of a run, except for its text."""
    words = [
        f"seed={draw.randint(0, 9)}",
        f"run.validate_every={draw.choice((2, 5, 13, 26, 26, 1000))}",
        f"run.keep_best={draw.choice((1, 1, 3))}",
        f"run.keep_last={draw.choice((1, 1, 2))}",
        f"data.batches_per_update={draw.choice(('null', 'null', '1', '3'))}",
        f"data.n_workers={draw.choice((0, 0, 0, 2))}",
        f"data.shapes={draw.choice(('free', 'free', 'buckets'))}",
        f"label_smoothing={draw.choice((0.0, 0.1))}",
        f"scheduler={draw.choice(('linear', 'inverse_sqrt', 'cosine'))}",
        f"optimizer={draw.choice(('adam', 'adamw'))}",
        f"logger={draw.choice(('csv', 'tensorboard'))}",
        f"trainer.precision={draw.choice(('32-true', '32-true', '64-true', 'bf16-mixed'))}",
        f"model/position={draw.choice(('sinusoidal', 'rotary', 'relative_bias'))}",
        f"model.tying={draw.choice(('all', 'none'))}",
    ]
    callbacks = [name for name in ("ema", "early_stopping") if draw.random() < 0.35]
    words.append(f"callbacks=[{','.join(callbacks)}]")
    if "early_stopping" in callbacks:
        words.append(f"callbacks.early_stopping.patience={draw.randint(1, 4)}")
    if draw.random() < 0.25:
        words.append("tokenizer.samples=2")
    if draw.random() < 0.25:
        words += ["data/noise=light", f"data.noise.samples={draw.choice((1, 3))}"]
    return words


def draw_fault(draw: random.Random, seconds: float, n_operations: int) -> Fault:
    """Draw a random fault for a life that would train for `seconds` and pass `n_operations` points of `strike`."""
    number = signal.SIGKILL if draw.random() < 0.7 else draw.choice(STOP_SIGNALS)
    kind = draw.random()
    if kind < 0.3:
        return Fault(number, operation=draw.randint(1, max(2, n_operations)))
    again = draw.uniform(0, 0.3) if number != signal.SIGKILL and draw.random() < 0.2 else None
    return Fault(number, draw.uniform(0, 1.1 * seconds), at_once=kind < 0.38, again=again)


# --- comparing the results of runs ---


class Left(NamedTuple):
    """The results of a run, except for its folder and its speed.

    Attributes:
        lines: recorded lines by position of the micro-batch; all lines of a position must be equal.
        parts: everything else, by name.
    """

    lines: dict[int, set[str]]
    parts: dict[str, Any]


def left(folder: Path) -> Left:
    """Read the results of the run in `folder`/run."""
    lines: dict[int, set[str]] = {}
    for line in (folder / f"{RECORD}.0").read_text().splitlines():
        values = json.loads(line)
        if values[0] != "began":
            lines.setdefault(values[0], set()).add(line)
    run = folder / "run"
    names = {file.name for file in run.rglob("*") if file.is_file()}
    names = {"events" if name.startswith("events.out") else name for name in names}
    parts: dict[str, Any] = {"files": sorted(names - {"previous.ckpt"})}
    curves = {f"curve {tag}": values for tag, values in _curves(run).items() if not tag.startswith("speed/")}
    parts |= curves
    for file in sorted(run.glob("*.ckpt")):
        if file.name == "previous.ckpt":  # differs if the run was interrupted
            continue
        content = container.read(file)
        for name in ("state_dict", "current_model_state", "optimizer_states", "lr_schedulers", "global_step", "diglot"):
            if name in content:
                parts |= {f"{file.name} {key}": value for key, value in flat(content[name], name)}
        for name, state in content["callbacks"].items():
            if name != "Speed":
                parts |= {f"{file.name} {key}": value for key, value in flat(state, f"callbacks.{name}")}
    for file in sorted([*(run / "text").iterdir(), *(run / "evaluation").rglob("*")]):
        if file.is_file() and file.suffix != ".json":
            parts[f"text {file.relative_to(run)}"] = file.read_bytes()
    results = json.loads((run / "results.json").read_text())
    parts |= {f"results.json{key}": value for key, value in flat(results, "") if not OF_THE_MOMENT & {*key.split(".")}}
    return Left(lines, {key: value for key, value in parts.items() if not key.endswith(OF_THE_LIFE)})


OF_THE_MOMENT = {
    *("openings", "seconds", "tokens_per_second", "dev_sentences_per_second", "memory_gb", "minutes", "finished"),
    "speed",
}
OF_THE_LIFE = ("config.resume", "config.run.folder", "diglot.validation_due_since")


def _curves(folder: Path) -> dict[str, Any]:
    table = folder / "metrics.csv"
    if not table.exists():
        return scalars(folder)
    header, *rows = (line.split(",") for line in table.read_text().splitlines())
    columns: dict[str, dict[str, str]] = {}
    for row in rows:
        values = dict(zip(header, row, strict=True))
        for name, value in values.items():
            if value and name != "step":
                assert values["step"] not in columns.setdefault(name, {}), f"{name} stands twice at {values['step']}"
                columns[name][values["step"]] = value
    return columns


def flat(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested plain data, with tensors as a hash of their bytes."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from flat(item, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from flat(item, f"{path}.{i}")
    elif isinstance(value, torch.Tensor):
        content = value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        yield path, (str(value.dtype), tuple(value.shape), hashlib.sha256(content).hexdigest())
    else:
        yield path, value


def differences(whole: Left, pieces: Left) -> list[str]:
    """Return the differences between an interrupted run and an uninterrupted one."""
    found = []
    for position, lines in pieces.lines.items():
        if lines != whole.lines.get(position):
            found.append(f"micro-batch {position}: {sorted(lines)} instead of {whole.lines.get(position)}")
    if missing := whole.lines.keys() - pieces.lines.keys():
        found.append(f"micro-batches {sorted(missing)} were never computed")
    for key in sorted(whole.parts.keys() | pieces.parts.keys()):
        a, b = (parts.get(key, "nothing") for parts in (whole.parts, pieces.parts))
        if repr(a) != repr(b):  # treats NaN as equal to NaN, and 0.0 as different from -0.0
            found.append(f"{key}: {str(b)[:200]} instead of {str(a)[:200]}")
    return found


@dataclass
class Whole:
    """An uninterrupted run and its results.

    Attributes:
        words: arguments of its command.
        left: its results.
        seconds: time from the first batch to the end of the process.
        n_operations: number of points in its file operations; see `strike`.
    """

    words: list[str]
    left: Left
    seconds: float
    n_operations: int


def whole(words: list[str], folder: Path, change: Callable[[], None] | None = None) -> Whole:
    """Train without a fault, and return the run."""
    folder.mkdir(parents=True)
    life = run([*words, "run.folder=run"], folder, Fault(signal.SIGKILL, operation=0), change)
    assert life.status == 0, life.said
    _, began = json.loads((folder / f"{RECORD}.0").read_text().splitlines()[0])
    n_operations = int(life.said.rpartition(OPERATIONS)[2])
    return Whole(words, left(folder), time.time() - began, n_operations)


@dataclass
class Story:
    """A run that was interrupted and resumed.

    Attributes:
        faults: the faults; one that came too late ended no life.
        lives: all lives; the last one finished the run.
        differences: differences from the uninterrupted run.
    """

    faults: list[Fault]
    lives: list[Life]
    differences: list[str]


def told(reference: Whole, folder: Path, faults: list[Fault], change: Callable[[], None] | None = None) -> Story:
    """Run with faults, resuming after each, and compare with the uninterrupted run."""
    folder.mkdir(parents=True)
    words = [*reference.words, "run.folder=run"]
    story = Story([], [], [])
    for fault in [*faults, None]:
        if (folder / "run").exists():
            words = [*reference.words, "resume=run"]
            if not (folder / "run" / "config.yaml").exists():  # it ended before it could be resumed
                shutil.rmtree(folder / "run")
                words = [*reference.words, "run.folder=run"]
        life = run(words, folder, fault, change)
        story.lives.append(life)
        story.faults += [fault] if fault and life.status else []
        story.differences += wrong_end(life, fault)
        if life.status == 0 and is_finished(folder):
            break
    try:
        story.differences += differences(reference.left, left(folder))
    except Exception as error:
        story.differences.append(f"what it left cannot be read: {error!r}")
    return story


def is_finished(folder: Path) -> bool:
    return (folder / "run" / "results.json").exists()


def wrong_end(life: Life, fault: Fault | None) -> list[str]:
    """Return a list of what is wrong about the end of a life."""
    wrong = [f"left processes {life.orphans} behind"] if life.orphans else []
    expected = {0}
    if fault is not None:
        expected |= {RESUME_ME, -fault.number, 128 + fault.number}
    if life.status not in expected or ("Traceback" in life.said and life.status >= 0):
        wrong.append(f"ended with {life.status} after {fault}:\n{life.said[-3000:]}")
    return wrong
