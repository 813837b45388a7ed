"""Test that every model variant learns to copy, reverse and sort, all three with one small model (`make conformance`).

    python tests/conformance/learning.py [FOLDER]    # folder of the table and its picture; default: runs/conformance

A cell is a combination of a position encoding and a norm placement, or a model of another kind. Each cell is trained in
a separate process and tested by decoding. Results are kept in runs/conformance, so that the same command resumes with
the missing cells. A cell whose settings or sources have changed is computed again.

A model without position encoding sees a source as a bag of symbols. It must fail at copy and reverse, which checks the
test itself. By chance it gets 0.18 right on the lengths 1 to 10: one symbol has only one order, two symbols are in the
right order half of the time, and so on.
"""

import argparse
import hashlib
import io
import json
import math
import multiprocessing
import os
import platform
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from multiprocessing.connection import wait
from pathlib import Path
from statistics import fmean
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch
from hydra import compose, initialize_config_dir
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from torch import Tensor

import diglot
from diglot.config import CONF, build
from diglot.data.text import write_bytes
from diglot.decoding import BeamSearch, SpecialIds
from diglot.model import EncoderDecoder
from diglot.sweeps.job import how_it_ended, last_line, say
from diglot.training.loss import token_loss
from diglot.training.schedule import Linear

KEPT = Path("runs/conformance")
AT_ONCE = 2  # number of parallel processes
SPECIAL = SpecialIds(pad=0, unk=1, bos=2, eos=3)
TASKS = ("copy", "reverse", "sort")
FIRST_TAG = 4  # each source begins with the tag of its task
FIRST_SYMBOL = FIRST_TAG + len(TASKS)
BEYOND = ((11, 15), (16, 20), (21, 30))  # lengths that do not occur in training
LEARNED = 0.99  # the exact match that a model must reach at each task
# The files that a result depends on, besides torch's version and the settings.
PACKAGE = Path(diglot.__file__).parent
SOURCES = (
    *("model", "decoding", "config/build.py", "training/loss.py", "training/schedule.py"),
    *(CONF / "model", Path(__file__)),
)


@dataclass(frozen=True)
class Settings:
    """Settings shared by all cells.

    Attributes:
        trained: maximum length of training sentences, in symbols.
        tested: maximum length of test sentences.
        rows: sentences per length in a batch.
        d_recurrent: width of a recurrent model's states, chosen to give it about as many parameters.
        rate: learning rate after the warm-up, from which it decays linearly to zero.
        seconds: limit of a cell's process time, including its test.
        for_test: seconds of this limit that are reserved for the test.
        samples: test sentences per task and length, on the training lengths and beyond.
        failed: upper bound of exact match at copy and reverse for a model that cannot see order.
    """

    n_symbols: int = 12
    trained: int = 10
    tested: int = 30
    updates: int = 1900
    rows: int = 12
    rate: float = 2e-3
    warmup: int = 150
    d_model: int = 96
    n_heads: int = 4
    d_ff: int = 192
    n_layers: int = 2
    d_recurrent: int = 128
    seconds: float = 240.0
    for_test: float = 30.0
    samples: tuple[int, int] = (200, 50)
    failed: float = 0.2
    seed: int = 1


class Cell(NamedTuple):
    """A model variant.

    Attributes:
        position: position encoding of the Transformer, or the name of another model.
        residual: norm placement of the Transformer; empty for another model.
    """

    position: str
    residual: str = ""

    @property
    def name(self) -> str:
        return f"{self.position} x {self.residual}" if self.residual else self.position

    @property
    def slug(self) -> str:
        return self.name.replace(" x ", "-")

    @property
    def sees_order(self) -> bool:
        return self.position != "none"

    def build(self, settings: Settings) -> EncoderDecoder:
        choices = ["model=base", f"model/position={self.position}", f"model/residual={self.residual}"]
        with initialize_config_dir(str(CONF), version_base="1.3"):
            node = compose("train", choices if self.residual else [f"model={self.position}"]).model
        s = settings
        sizes = {"d_model": s.d_model, "n_heads": s.n_heads, "d_ff": s.d_ff, "dropout": 0.0}
        sizes |= {"n_encoder_layers": s.n_layers, "n_decoder_layers": s.n_layers}
        sizes |= {"d_hidden": s.d_recurrent, "d_attention": s.d_recurrent}
        node.update({key: value for key, value in sizes.items() if key in node})
        if "max_positions" in node.get("position", {}):  # a table as long as training needs
            node.position.max_positions = s.trained + 2
        vocab_size = FIRST_SYMBOL + s.n_symbols
        model: EncoderDecoder = build(node, "model", src_vocab_size=vocab_size, tgt_vocab_size=vocab_size)
        return model


def cells() -> list[Cell]:
    """Return all cells; a new file in conf/model adds cells."""

    def names(part: str) -> list[str]:
        return sorted(path.stem for path in (CONF / "model" / part).glob("*.yaml"))

    found = [Cell(position, residual) for position in names("position") for residual in names("residual")]
    return found + [Cell(name) for name in names("") if name == "gru_attention"]


class Rows(NamedTuple):
    """Sentences as model inputs, (B, S) and (B, T), padded with <pad>."""

    src: Tensor
    src_mask: Tensor
    tgt_in: Tensor
    labels: Tensor
    tgt_mask: Tensor


def sentences(tasks: Tensor, symbols: Tensor, lengths: Tensor) -> Rows:
    """Return sources and targets of tasks (B,) for the first `lengths` (B,) symbols (B, N), numbered from 0."""
    n_rows, longest = symbols.shape
    at = torch.arange(longest)
    inside = at < lengths[:, None]
    tokens = (symbols + FIRST_SYMBOL).where(inside, SPECIAL.pad)
    backwards = tokens.gather(1, (lengths[:, None] - 1 - at).clamp(min=0)).where(inside, SPECIAL.pad)
    ordered = (symbols + FIRST_SYMBOL).where(inside, 2**31).sort(1).values.where(inside, SPECIAL.pad)
    results = torch.stack((tokens, backwards, ordered))[tasks, torch.arange(n_rows)]

    def ended(text: Tensor) -> Tensor:
        room = torch.full((n_rows, 1), SPECIAL.pad)
        return torch.cat((text, room), 1).scatter(1, lengths[:, None], SPECIAL.eos)

    src = torch.cat((FIRST_TAG + tasks[:, None], ended(tokens)), 1)
    labels = ended(results)
    tgt_in = torch.cat((torch.full((n_rows, 1), SPECIAL.bos), results), 1)
    return Rows(src, src != SPECIAL.pad, tgt_in, labels, labels != SPECIAL.pad)


def batch(settings: Settings, update: int) -> list[Rows]:
    """Return the sentences of an update, equally many of each length, in two parts by length to save padding.

    They depend only on the seed and the number of the update.
    """
    random = torch.Generator().manual_seed(settings.seed * 1_000_003 + update)
    lengths = torch.arange(1, settings.trained + 1).repeat_interleave(settings.rows)
    tasks = torch.randint(len(TASKS), lengths.shape, generator=random)
    symbols = torch.randint(settings.n_symbols, (len(lengths), settings.trained), generator=random)
    half = settings.trained // 2 * settings.rows
    parts = (slice(half), slice(half, None))
    return [sentences(tasks[p], symbols[p, : int(lengths[p].max())], lengths[p]) for p in parts]


def train(model: EncoderDecoder, settings: Settings, done: Any) -> tuple[int, float]:
    """Train the model within the limit of process time.

    Args:
        model: the model, trained in place.
        settings: the settings of the run.
        done: shared counter, whose `value` is set to the number of updates done.

    Returns:
        The number of updates, and target tokens per second of process time.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9, fused=True)
    schedule = Linear(optimizer, settings.updates, settings.rate, settings.warmup)
    begin, n_tokens, update = time.process_time(), 0, 0
    model.train()
    while update < settings.updates and time.process_time() < settings.seconds - settings.for_test:
        update += 1
        parts = batch(settings, update)
        n_targets = sum(int(part.tgt_mask.sum()) for part in parts)
        for part in parts:
            logits = model(part.src, part.tgt_in, part.src_mask)
            (token_loss(logits, part.labels, part.tgt_mask, 0.0).smoothed / n_targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        n_tokens += n_targets
        done.value = update
    return update, n_tokens / (time.process_time() - begin)


def test_symbols(settings: Settings, length: int) -> Tensor:
    """Return the test symbols (N, length) of all tasks; short sentences may also occur in training."""
    # Subtracting the length cannot give the seed of an update, whose number is added.
    random = torch.Generator().manual_seed(settings.seed * 1_000_003 - length)
    n_sentences = settings.samples[length > settings.trained]
    return torch.randint(settings.n_symbols, (n_sentences, length), generator=random)


def chance(settings: Settings) -> float:
    """Return the expected exact match on the training lengths if the symbols are known and their order is guessed."""
    shares = [
        math.prod(map(math.factorial, Counter(sentence).values())) / math.factorial(length)
        for length in range(1, settings.trained + 1)
        for sentence in test_symbols(settings, length).tolist()
    ]
    return sum(shares) / len(shares)


def exact_match(model: EncoderDecoder, settings: Settings) -> dict[str, list[float | None]]:
    """Return for each task, by length from 1, the fraction of outputs that are correct in all symbols.

    It is None for sentences longer than the model's maximum.
    """
    search = BeamSearch(beam_size=1, length_penalty=0.0, max_len_a=1.0, max_len_b=4)  # a little more than needed
    found: dict[str, list[float | None]] = {task: [] for task in TASKS}
    model.eval()
    for length in range(1, settings.tested + 1):
        symbols = test_symbols(settings, length)
        n = len(symbols)
        tasks = torch.arange(len(TASKS)).repeat_interleave(n)
        rows = sentences(tasks, symbols.repeat(len(TASKS), 1), torch.full((len(tasks),), length))
        known = (model.max_src_positions, model.max_tgt_positions)
        if any(n is not None and rows.src.size(1) > n for n in known):
            for task in TASKS:
                found[task].append(None)
            continue
        outputs = [best[0].tokens for best in search(model, rows.src, rows.src_mask, SPECIAL)]
        right = [output == label[:length] for output, label in zip(outputs, rows.labels.tolist(), strict=True)]
        for i, task in enumerate(TASKS):
            found[task].append(sum(right[i * n : (i + 1) * n]) / n)
    return found


def sources() -> str:
    """Return a hash of torch's version and the files that a result depends on."""
    total = hashlib.sha256(torch.__version__.encode())
    for path in (PACKAGE / name for name in SOURCES):
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")) + sorted(path.rglob("*.yaml")):
            total.update(f"{file.name}\n".encode() + file.read_bytes())
    return total.hexdigest()


def fingerprint(cell: Cell, settings: Settings, files: str) -> str:
    return hashlib.sha256(json.dumps([cell, asdict(settings), files]).encode()).hexdigest()[:16]


def compute(cell: Cell, settings: Settings, done: Any) -> dict[str, Any]:
    """Train and test a cell in a new process, and return its results."""
    torch.set_num_threads(1)
    torch.manual_seed(settings.seed)
    model = cell.build(settings)
    updates, speed = train(model, settings, done)
    return {
        "exact_match": exact_match(model, settings),
        "updates": updates,
        "tokens_per_second": round(speed),
        "megabytes": round(peak_memory() / 2**20),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "seconds": round(time.process_time(), 1),
        "machine": machine(),
        "date": date.today().isoformat(),
    }


Worker = Callable[[Cell, Settings, Any], dict[str, Any]]


def work(worker: Worker, cell: Cell, settings: Settings, files: str, kept: Path, done: Any) -> None:
    """Compute and store the result of a cell in its process, or end its log with the error."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    output = os.open(log_of(cell, kept), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for stream in (1, 2):
        os.dup2(output, stream)
    try:
        if sources() != files:
            raise RuntimeError("the sources have changed since the command began: it has to begin again")
        result = {"fingerprint": fingerprint(cell, settings, files), **worker(cell, settings, done)}
        write_bytes(file_of(cell, kept), json.dumps(result).encode())
    except Exception as error:
        traceback.print_exc()
        sys.exit(f"{type(error).__name__}: {(str(error).splitlines() or ['?'])[0]}")


def end_with_parent() -> None:
    """End this process when its parent ends, even by SIGKILL."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def peak_memory() -> int:
    """Return the peak memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def machine() -> str:
    """Describe the machine and PyTorch's version, without the host name."""
    info = Path("/proc/cpuinfo")
    models = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    processor = models[0].partition(":")[2].strip() if models else platform.machine()
    return f"{processor}, {os.cpu_count()} cores, one thread per cell, PyTorch {torch.__version__}"


def file_of(cell: Cell, kept: Path) -> Path:
    return kept / f"{cell.slug}.json"


def log_of(cell: Cell, kept: Path) -> Path:
    return kept / f"{cell.slug}.log"


def read(cell: Cell, settings: Settings, files: str, kept: Path) -> dict[str, Any] | None:
    """Read a stored result; return None if there is none for these settings and sources."""
    try:
        result: dict[str, Any] = json.loads(file_of(cell, kept).read_bytes())
    except (OSError, ValueError):
        return None
    return result if result.get("fingerprint") == fingerprint(cell, settings, files) else None


def compute_all(todo: Sequence[Cell], settings: Settings, files: str, kept: Path, worker: Worker) -> dict[Cell, str]:
    """Compute cells, two at a time, and report each result.

    Returns:
        The error of each cell without a result.
    """
    context = multiprocessing.get_context("spawn")
    errors: dict[Cell, str] = {}
    waiting = list(todo)
    running: dict[Cell, tuple[Any, Any, Any]] = {}  # process, updates done, bar
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, disable=not sys.stdout.isatty()) as progress:
        whole = progress.add_task("cells", total=len(todo))

        def tell(line: str) -> None:
            progress.console.print(line, markup=False, highlight=False, soft_wrap=True)

        try:
            while waiting or running:
                while waiting and len(running) < AT_ONCE:
                    cell = waiting.pop(0)
                    done = context.Value("l", 0)
                    process = context.Process(
                        target=work, args=(worker, cell, settings, files, kept, done), daemon=True
                    )
                    bar = progress.add_task(cell.name, total=settings.updates)
                    # A terminal sends Ctrl-C to all processes. The cells block it, and are ended below.
                    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
                    process.start()
                    running[cell] = process, done, bar
                    signal.pthread_sigmask(signal.SIG_SETMASK, before)
                    if progress.disable:
                        tell(f"{cell.name} ...")
                wait([process.sentinel for process, _, _ in running.values()], timeout=0.5)
                for cell, (process, done, bar) in list(running.items()):
                    progress.update(bar, completed=done.value)
                    if process.is_alive():
                        continue
                    process.join()
                    del running[cell]
                    progress.remove_task(bar)
                    progress.advance(whole)
                    result = read(cell, settings, files, kept)
                    if result is None:
                        log = log_of(cell, kept)
                        said = f": {last_line(log, 0)}" if process.exitcode > 0 and log.exists() else ""
                        errors[cell] = f"{how_it_ended(process.exitcode)}{said} ({log})"
                        tell(f"{cell.name}: {errors[cell]}")
                    else:
                        tell(f"{cell.name}: {verdict(cell, result, settings).text}, {result['seconds']:.0f} s")
        finally:
            for process, _, _ in running.values():
                process.kill()
                process.join()
    return errors


class Verdict(NamedTuple):
    fine: bool
    text: str


def on_trained_lengths(result: Mapping[str, Any], settings: Settings, task: str) -> float:
    """Return the mean exact match over the training lengths."""
    return fmean(result["exact_match"][task][: settings.trained])


def verdict(cell: Cell, result: Mapping[str, Any], settings: Settings) -> Verdict:
    """Judge whether a model reaches the required exact match, or fails where it must."""
    reached = {task: on_trained_lengths(result, settings, task) for task in TASKS}
    if cell.sees_order:
        wrong = [task for task in TASKS if reached[task] < LEARNED]
        missed, text = "MISSED", "passed"
    else:
        wrong = [task for task in ("copy", "reverse") if reached[task] >= settings.failed]
        missed, text = "MISSED, too good for a model that cannot see order", "fails at copy and reverse, as it must"
    if wrong:
        text = f"{missed}: {', '.join(f'{task} {reached[task]:.4f}' for task in wrong)}"
    if result["updates"] < settings.updates:
        text += f" (time was up at update {result['updates']:,} of {settings.updates:,})"
    return Verdict(not wrong, text)


COLUMNS = (
    *("position", "norm placement", *TASKS, *(f"{first}-{last}" for first, last in BEYOND)),
    *("tokens/s", "MB", "parameters", "seconds", "status"),
)


def table(chosen: Sequence[Cell], results: Mapping[Cell, Mapping[str, Any]], settings: Settings) -> str:
    """Format all cells as a Markdown table whose columns are also aligned in a terminal."""
    is_number = [2 <= i < len(COLUMNS) - 1 for i in range(len(COLUMNS))]
    lines = [list(COLUMNS)]
    for cell in chosen:
        if cell not in results:
            lines.append([*cell, *[""] * sum(is_number), "CRASHED"])
            continue
        result = results[cell]
        shares = [f"{on_trained_lengths(result, settings, task):.4f}" for task in TASKS]
        for first, last in BEYOND:
            values = [value for task in TASKS for value in result["exact_match"][task][first - 1 : last]]
            shares.append("n/a" if None in values or not values else f"{fmean(values):.2f}")
        numbers = [f"{result[name]:,.0f}" for name in ("tokens_per_second", "megabytes", "parameters", "seconds")]
        lines.append([*cell, *shares, *numbers, verdict(cell, result, settings).text])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * (width - right) + ":" * right for width, right in zip(widths, is_number, strict=True)])
    return "".join(
        f"| {' | '.join(v.rjust(w) if r else v.ljust(w) for v, w, r in zip(line, widths, is_number, strict=True))} |\n"
        for line in lines
    )


def report(chosen: Sequence[Cell], results: Mapping[Cell, Mapping[str, Any]], settings: Settings) -> str:
    """Return the table with an explanation."""

    def all_of(name: str) -> str:
        return " and ".join(sorted({str(result[name]) for result in results.values()}))

    meaning = (
        "A model variant conforms if it learns simple tasks that every correct implementation learns, and fails at "
        "those that it cannot solve in principle. This page is for readers who add, change or check a variant."
    )
    about = (
        "Each row of the table is one model. It is trained on three tasks at once: to copy, to reverse and to sort "
        f"sequences from an alphabet of {settings.n_symbols} symbols. The first token of a source names the task. The "
        f"sequences in training have 1 to {settings.trained} symbols. Training takes {settings.updates:,} updates of "
        f"{settings.rows * settings.trained} sequences. A model passes if at least {LEARNED} of its outputs are "
        "correct, at each task. A model without positions cannot see the order of symbols. Therefore it must stay "
        f"below {settings.failed} at copy and reverse, where guessing the order gives {chance(settings):.2f}."
    )
    made = f"Made by `make conformance` at commit {commit()}, {all_of('date')}, on {all_of('machine')}."
    columns = {
        "copy, reverse, sort": "The share of outputs of greedy decoding that are correct in all symbols, for sequences "
        f"of 1 to {settings.trained} symbols.",
        ", ".join(f"{first}-{last}" for first, last in BEYOND): "The same share for sequences of these lengths, which "
        "do not occur in training, as the mean over the three tasks. n/a: longer than the learned position table.",
        "tokens/s": "Target tokens per second of process time in training.",
        "MB": "Peak memory of the process.",
        "parameters": "Number of the model's parameters.",
        "seconds": "Process time of training and test.",
        "status": "Whether the model reaches the required shares, or fails where it must.",
    }
    listed = (textwrap.fill(f"- {name}: {text}", 120, subsequent_indent="  ") for name, text in columns.items())
    heading = "# Conformance: what every model variant learns"
    paragraphs = [textwrap.fill(meaning, 120), textwrap.fill(about, 120), "\n".join(listed), textwrap.fill(made, 120)]
    return "\n\n".join([heading, *paragraphs, table(chosen, results, settings)])


def commit() -> str:
    """Return the commit of this checkout, and whether the tested files differ from it."""

    def git(*words: str) -> str:
        here = Path(__file__).parents[2]
        return subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", "src", "conf", "tests/conformance")
        return f"`{git('rev-parse', '--short', 'HEAD')}`" + (" + changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def picture(chosen: Sequence[Cell], results: Mapping[Cell, Mapping[str, Any]], settings: Settings) -> bytes:
    """Draw exact match by cell and length, with one panel per task, as a PNG."""
    from matplotlib.figure import Figure  # imported here because it is slow

    shown = [cell for cell in chosen if cell in results]
    figure = Figure(figsize=(13, 1.6 + 0.24 * len(shown)), layout="constrained")
    panels = figure.subplots(1, len(TASKS), sharey=True)
    for task, panel in zip(TASKS, panels, strict=True):
        values = np.array([results[cell]["exact_match"][task] for cell in shown], dtype=float)  # None becomes NaN
        edges = (0.5, settings.tested + 0.5, len(shown) - 0.5, -0.5)
        image = panel.imshow(values, extent=edges, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
        panel.set_facecolor("lightgrey")  # for lengths beyond a table of positions
        panel.axvline(settings.trained + 0.5, color="red")
        panel.set_title(task, fontsize=10)
        panel.set_xlabel("length", fontsize=9)
        panel.set_xticks([1, *range(5, settings.tested + 1, 5)])
        panel.set_yticks(range(len(shown)), [cell.name for cell in shown])
        panel.tick_params(labelsize=8)
    figure.colorbar(image, ax=panels, pad=0.01).set_label("exact match", fontsize=9)
    figure.suptitle(f"trained on the lengths left of the red line, 1 to {settings.trained}", fontsize=10)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=100)
    return content.getvalue()


def main(
    folder: Path = KEPT,
    kept: Path = KEPT,
    chosen: Sequence[Cell] | None = None,
    settings: Settings | None = None,
    worker: Worker | None = None,
) -> int:
    """Compute the missing cells and report all.

    Args:
        folder: folder of the table and its picture.
        kept: folder of the stored results.
        chosen: the cells; None: all.
        settings: settings of all cells; None: the default.
        worker: function that a cell's process runs; None: compute.

    Returns:
        The exit status: 0 if all cells pass.
    """
    chosen, settings, files = chosen or cells(), settings or Settings(), sources()
    for each in (kept, folder):
        try:
            each.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            say(f"{each}: cannot be made: {error.strerror}")
            return 2
    todo = [cell for cell in chosen if read(cell, settings, files, kept) is None]
    say(f"{len(chosen)} cells, {len(chosen) - len(todo)} of them finished before ({kept}/)")
    errors = compute_all(todo, settings, files, kept, worker or compute)
    found = {cell: read(cell, settings, files, kept) for cell in chosen if cell not in errors}
    results = {cell: result for cell, result in found.items() if result is not None}
    if results:
        text = report(chosen, results, settings)
        write_bytes(folder / "conformance.md", text.encode())
        write_bytes(folder / "conformance.png", picture(chosen, results, settings))
        say(f"\n{text}\nMade in {folder}/: conformance.md, conformance.png")
    verdicts = {cell: verdict(cell, result, settings) for cell, result in results.items()}
    wrong = errors | {cell: each.text for cell, each in verdicts.items() if not each.fine}
    for cell, what in wrong.items():
        say(f"{cell.name}: {what}")
    return 1 if wrong else 0


def interrupt(number: int, _: FrameType | None) -> None:
    raise KeyboardInterrupt(number)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=KEPT)
    for number in (signal.SIGTERM, signal.SIGHUP):  # handled like Ctrl-C, so that no process of a cell is left behind
        signal.signal(number, interrupt)
    try:
        sys.exit(main(parser.parse_args().folder))
    except KeyboardInterrupt as stop:
        say(f"Stopped. What is finished stays in {KEPT}/: the same command resumes with the other cells")
        sys.exit(128 + (stop.args[0] if stop.args else signal.SIGINT))
