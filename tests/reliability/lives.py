"""Runs of several lives: each is ended by a kill, a signal or a fault, the next goes on, and the whole must equal a run
of one life.

A life is a process forked from one that has imported everything: it begins training after a second.
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
from diglot.system.interruption import ASKING, answer_by_exception  # noqa: E402
from support.commands import scalars  # noqa: E402

HERE = Path(__file__).parent
RECORD = "recorded.jsonl"
OPERATIONS = "halves of operations on files: "


class Recorder(L.Callback):
    """Writes down what each micro-batch was and what came of it, to the last bit."""

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
        # One write: a kill leaves a whole line or none.
        rank = os.environ.get("LOCAL_RANK", "0")
        descriptor = os.open(f"{os.environ['RECORDED_IN']}.{rank}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, (json.dumps(values) + "\n").encode())
        os.close(descriptor)


class Held(L.Callback):
    """Writes down, every 1,000 updates, what the process holds: bytes of memory, open files, temporary ones."""

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
    """Send the process the signal that it is to get here, if it is."""
    asked = os.environ.get("STRIKE", "").split()
    if asked and asked[:2] == [within, str(update)]:
        del os.environ["STRIKE"]
        for _ in range(int(asked[3])):
            os.kill(os.getpid(), int(asked[2]))


def struck(within: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function at whose begin the process is sent a signal, if it is to get one there."""

    def call(*arguments: Any, **options: Any) -> Any:
        strike_here(within, 0)
        return function(*arguments, **options)

    return call


class Fault(NamedTuple):
    """What ends a life before its time.

    Attributes:
        number: of the signal; SIGKILL cannot be heeded.
        seconds: after training began, or after the start of the process where it begins at once.
        at_once: whether the time counts from the start of the process.
        operation: instead of a time: before (odd) or after (even) this many-th half of an operation on files.
        update: instead of a time: after this update.
        within: what is done then: update (all that follows the update is done, the next one not begun), accumulation
            (in the middle of the next one), validation (of this one), save (in the middle of this many-th writing of a
            checkpoint; with operation=0), or, with update=0, preparation (the data are ready), setup (training is about
            to begin), teardown (it is over), end (in the evaluation of test text).
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
    """How a life ended.

    Attributes:
        status: exit status of the process; negative: the signal that killed it.
        said: on standard output and error.
        seconds: from fork to end.
        orphans: processes that it left behind.
    """

    status: int
    said: str
    seconds: float
    orphans: list[int] = field(default_factory=list)


def strike(number: int, at: int) -> Callable[[], int]:
    """Let the process be sent a signal in the middle of its work with files: before and after each call that makes a
    file whole, gives it its name or takes it away, and when half of a checkpoint is written.

    Args:
        number: of the signal.
        at: which of these halves it is sent in, from 1.

    Returns:
        Says how many there have been.
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
    """In a process of its own: type diglot-train."""
    os.setsid()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: no life outlasts the server
    descriptor = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    multiprocessing.set_start_method("fork", force=True)  # as it is where nobody has said otherwise
    os.chdir(folder)
    os.environ["RECORDED_IN"] = str(folder / RECORD)
    for number in ASKING:
        signal.signal(number, signal.SIG_DFL)
    answer_by_exception()  # as all commands do
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
        finally:  # a signal that comes only now changes nothing any more
            os._exit(status)


_server = multiprocessing.get_context("forkserver")


def serve() -> None:
    """Start the process that lives are forked from."""
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = [str(HERE), str(HERE.parent), *before]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, dict.fromkeys(paths)))  # where it finds this file
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["HF_HUB_OFFLINE"] = "1"
    _server.set_forkserver_preload(["lives", *PRELOADED])


# What a run imports only when it needs it.
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
    """Let a run live until it ends or its fault does.

    Args:
        words: of the command.
        folder: to type it in.
        fault: what ends it.
        change: done in the process before it begins; by name, for it is looked up there.
        limit: seconds after which a life counts as hanging.
    """
    serve()
    said, recorded = folder / "said.txt", folder / f"{RECORD}.0"
    said.write_bytes(b"")  # a life may end before it has said anything
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
    """The processes of a session that live."""
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
    """The processes of a session that outlast its first one: loader workers look only now and then whether it lives."""
    deadline = time.monotonic() + patience
    while found := of_session(session):
        if time.monotonic() > deadline:
            for number in found:
                os.kill(number, signal.SIGKILL)
            return found
        time.sleep(0.1)
    return []


def save_for_ever(folder: Path, update: int, tmpdir: str | None, done: Any, change: Callable[[], None] | None) -> None:
    """In a process of its own: write one checkpoint after the other, and tell which."""
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
    """Which checkpoint a folder holds, 0 if none. It must be whole."""
    if not (folder / "last.ckpt").exists():
        return 0
    content = container.read(folder / "last.ckpt")
    assert (content["weights"] == content["update"]).all()
    return content["update"]


def kill_savers(
    folder: Path, n_kills: int, seed: int, tmpdir: str | None, change: Callable[[], None] | None = None
) -> list[str]:
    """Kill a process that writes checkpoints, again and again; what was wrong then."""
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
    if extra := [file.name for file in folder.iterdir() if file.name != "last.ckpt"][1:]:  # of the last kill may be one
        wrong.append(f"left behind: {extra}")
    return wrong


# --- what is trained ---


def write_text(folder: Path, n_pairs: int = 203) -> list[str]:
    """Write a small corpus; the overrides that name it."""
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
    """What a run is made of, besides its text."""
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
    return words


def draw_fault(draw: random.Random, seconds: float, n_operations: int) -> Fault:
    """A fault somewhere in a life that would train for so long and do so many things with files."""
    number = signal.SIGKILL if draw.random() < 0.7 else draw.choice(ASKING)
    kind = draw.random()
    if kind < 0.3:
        return Fault(number, operation=draw.randint(1, max(2, n_operations)))
    again = draw.uniform(0, 0.3) if number != signal.SIGKILL and draw.random() < 0.2 else None
    return Fault(number, draw.uniform(0, 1.1 * seconds), at_once=kind < 0.38, again=again)


# --- what a run leaves, and whether another one left the same ---


class Left(NamedTuple):
    """What a run leaves, apart from where and how fast it ran.

    Attributes:
        lines: of its recorder, by position: what must be the same each time it is computed.
        parts: everything else, by name.
    """

    lines: dict[int, set[str]]
    parts: dict[str, Any]


def left(folder: Path) -> Left:
    """Read what the run in `folder`/run left."""
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
        if file.name == "previous.ckpt":  # that of a run that was stopped is another one
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


OF_THE_MOMENT = {"seconds", "tokens_per_second", "memory_gb", "minutes", "finished", "speed"}
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
    """The leaves of nested plain data, tensors as a hash of their bytes."""
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
    """In what the run of several lives differs from the run of one."""
    found = []
    for position, lines in pieces.lines.items():
        if lines != whole.lines.get(position):
            found.append(f"micro-batch {position}: {sorted(lines)} instead of {whole.lines.get(position)}")
    if missing := whole.lines.keys() - pieces.lines.keys():
        found.append(f"micro-batches {sorted(missing)} were never computed")
    for key in sorted(whole.parts.keys() | pieces.parts.keys()):
        a, b = (parts.get(key, "nothing") for parts in (whole.parts, pieces.parts))
        if repr(a) != repr(b):  # nan is nan, and 0.0 is not -0.0
            found.append(f"{key}: {str(b)[:200]} instead of {str(a)[:200]}")
    return found


@dataclass
class Whole:
    """A run of one life, and what it left.

    Attributes:
        words: of its command.
        left: see there.
        seconds: that it trained, from the first batch to the end of the process.
        n_operations: how many halves of operations on files a life has.
    """

    words: list[str]
    left: Left
    seconds: float
    n_operations: int


def whole(words: list[str], folder: Path, change: Callable[[], None] | None = None) -> Whole:
    """Train once without a fault."""
    folder.mkdir(parents=True)
    life = run([*words, "run.folder=run"], folder, Fault(signal.SIGKILL, operation=0), change)
    assert life.status == 0, life.said
    _, began = json.loads((folder / f"{RECORD}.0").read_text().splitlines()[0])
    n_operations = int(life.said.rpartition(OPERATIONS)[2])
    return Whole(words, left(folder), time.time() - began, n_operations)


@dataclass
class Story:
    """A run of several lives.

    Attributes:
        faults: what ended them; those that came too late ended none.
        lives: all of them; the last came to its end.
        differences: from the run of one life.
    """

    faults: list[Fault]
    lives: list[Life]
    differences: list[str]


def told(reference: Whole, folder: Path, faults: list[Fault], change: Callable[[], None] | None = None) -> Story:
    """Let a run live through faults and compare it with the one that lived through none."""
    folder.mkdir(parents=True)
    words = [*reference.words, "run.folder=run"]
    story = Story([], [], [])
    for fault in [*faults, None]:
        if (folder / "run").exists():
            words = [*reference.words, "resume=run"]
            if not (folder / "run" / "config.yaml").exists():  # it died before there was anything to go on with
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
    """What is wrong about how a life ended."""
    wrong = [f"left processes {life.orphans} behind"] if life.orphans else []
    expected = {0}
    if fault is not None:
        expected |= {RESUME_ME, -fault.number, 128 + fault.number}
    if life.status not in expected or ("Traceback" in life.said and life.status >= 0):
        wrong.append(f"ended with {life.status} after {fault}:\n{life.said[-3000:]}")
    return wrong
