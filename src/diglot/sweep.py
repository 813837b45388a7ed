"""diglot-sweep: train once for each of several choices, each job a process of its own, and compare what came out.

Here is what is not Hydra's: a job's folder and record, its process, the comparison of all jobs. Hydra's side, which
says what jobs there are, is hydra_plugins.diglot_launcher.
"""

import contextlib
import csv
import ctypes
import fcntl
import hashlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table
from rich.text import Text

from diglot.config import without_secrets
from diglot.data.text import write_bytes
from diglot.errors import UserError

RECORD, OUTPUT, RESULTS, LOCK = "job.json", "output.txt", "results.json", ".lock"

# What a process of a distributed run finds in its environment: a job is a run of its own, whoever starts it. Without
# the number of SLURM's tasks Lightning starts a job's processes itself.
DISTRIBUTED = {
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("SLURM_NTASKS", "DIGLOT_RUN_FOLDER", "HYDRA_FULL_ERROR"),
}

# Seconds that a job has to end after a signal, before it is killed.
GRACE = 60.0


def main() -> None:
    """`diglot-train -m ...`."""
    from diglot.train import main as train  # which imports this module

    sys.argv.insert(1, "--multirun")
    train()


def say(line: str) -> None:
    print(line, flush=True)


# ---------------------------------------------------------------------------------------------------------- one job


@dataclass
class Job:
    """A job: a folder with the record of what it is and how it went. A finished one has results, too.

    Attributes:
        folder: its own; the run's folder is the same one.
        number: within the sweep.
        overrides: all of its command line.
        varies: those of them that the command varied.
        hash: of its config; two jobs with the same hash are one.
        status: "not started", "running", "interrupted", "failed", "tried" (fast_dev_run) or "finished".
        exit_status: of its process; negative: the signal that killed it.
        message: what went wrong.
        process: its number, while it runs.
        started, ended: local times.
    """

    folder: Path
    number: int
    overrides: tuple[str, ...]
    varies: tuple[str, ...]
    hash: str
    status: str = "not started"
    exit_status: int | None = None
    message: str = ""
    process: int | None = None
    started: str | None = None
    ended: str | None = None

    @classmethod
    def read(cls, folder: Path) -> "Job":
        """The job that a folder's record describes."""
        try:
            record = json.loads((folder / RECORD).read_bytes())
            kept = {name: record[name] for name in cls._kept()}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{folder / RECORD}: damaged ({type(error).__name__}: {error})") from None
        lists: dict[str, Any] = {name: tuple(kept[name]) for name in ("overrides", "varies")}
        job = cls(folder, **kept | lists)
        if job.results:
            job.status = "finished"
        return job

    def write(self) -> None:
        record = {name: getattr(self, name) for name in self._kept()}
        write_bytes(self.folder / RECORD, (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode())

    @classmethod
    def _kept(cls) -> list[str]:
        return [field.name for field in fields(cls) if field.name != "folder"]

    @property
    def results(self) -> dict[str, Any]:
        """What the run wrote at its end; empty before."""
        try:
            results = json.loads((self.folder / RESULTS).read_bytes())
        except (OSError, ValueError):
            return {}
        return results if isinstance(results, dict) and results.get("finished") else {}

    def value(self, objective: str) -> float | None:
        """The score of its best checkpoint that an objective like dev/bleu names."""
        return self.results.get("best", {}).get(objective.removeprefix("dev/"))


def config_hash(config: Any, *more: Any, length: int = 12) -> str:
    """What tells a run's config from others, apart from where its files go and what sweep it is part of."""
    plain = without_secrets(OmegaConf.masked_copy(config, [key for key in config if key != "hydra"]))
    for key in ("resume", "objective", "sweep"):
        plain.pop(key, None)
    plain.get("run", {}).pop("folder", None)
    text = json.dumps([plain, *more], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def command(module: str, hydra: Any, overrides: Iterable[str], folder: Path) -> list[str]:
    """The command line of a job.

    Args:
        module: what is run, like diglot.train.
        hydra: the hydra node of the sweep's config, for what the user said to Hydra itself.
        overrides: the job's own.
        folder: of the job.
    """
    words = [sys.executable, "-m", module]
    for source in hydra.runtime.config_sources:
        if source.provider == "command-line":
            words += ["--config-dir", source.path]
    words += ["--config-name", hydra.job.config_name]
    of_sweep = re.compile(r"[+~]*hydra(/launcher|/sweeper|\.launcher|\.sweeper|\.mode)")
    words += [word for word in hydra.overrides.hydra if not of_sweep.match(word)]
    return [*words, *overrides, "hydra.mode=RUN", f"resume={quoted(str(folder))}"]


def quoted(text: str) -> str:
    """A text as a value that Hydra's grammar reads back."""
    if re.fullmatch(r"[A-Za-z_./][\w./-]*", text, re.ASCII) and text.lower() not in (
        "null",
        "true",
        "false",
        "nan",
        "inf",
    ):
        return text
    escaped = re.sub(r"(\\+)(?=$|')", r"\1\1", text).replace("'", r"\'").replace("${", r"\${")
    return f"'{escaped}'"


def run(job: Job, words: Sequence[str], signals: "Signals | None" = None, tries_only: bool = False) -> None:
    """Run a job to its end, in a process, a session and a log of its own, and write down how it ended.

    Args:
        job: which it is.
        words: its command line.
        signals: what the user sends meanwhile: it is passed on.
        tries_only: whether the run makes no results (fast_dev_run).
    """
    with (job.folder / OUTPUT).open("ab") as output:
        begin = output.tell()
        process = start(words, output)
    try:
        job.status, job.started, job.ended, job.exit_status, job.message = "running", now(), None, None, ""
        job.process = process.pid
        job.write()
        job.exit_status = wait(process, follow(job.folder / OUTPUT, begin), signals)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # what the job started ends with it
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        job.ended, job.process = now(), None
        if job.results:
            job.status = "finished"
        elif job.exit_status is None or (signals and signals.received):
            job.status = "interrupted"
        elif job.exit_status == 0 and tries_only:
            job.status = "tried"
        else:
            job.status = "failed"
            job.message = how_it_ended(job.exit_status)
            if job.exit_status >= 0:  # what was killed has not said why
                job.message += f": {last_line(job.folder / OUTPUT, begin)}"
        job.write()


def start(words: Sequence[str], output: Any) -> subprocess.Popen[bytes]:
    """Start a job's process: no signal meant for others reaches it, and it does not outlive this one."""
    libc, launcher = ctypes.CDLL(None), os.getpid()

    def prepare() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background process ignores it
        if hasattr(libc, "prctl"):  # Linux
            libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
            if os.getppid() != launcher:
                os._exit(1)

    environment = {name: value for name, value in os.environ.items() if name not in DISTRIBUTED}
    return subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
        preexec_fn=prepare,
    )


def wait(process: subprocess.Popen[bytes], show: Callable[[], None], signals: "Signals | None") -> int:
    """Wait for a job's end and pass on signals. They go to its first process alone, which stops the others it started:
    two that are signalled at once would wait for each other."""
    deadline = None
    while (status := process.poll()) is None:
        show()
        if signals and signals.received:
            if deadline is None:
                process.send_signal(signal.SIGINT if signals.received[0] == signal.SIGINT else signal.SIGTERM)
                deadline = time.monotonic() + GRACE
            elif len(signals.received) > 1 or time.monotonic() > deadline:
                os.killpg(process.pid, signal.SIGKILL)
        time.sleep(0.1)
    show()
    return status


def follow(path: Path, position: int) -> Callable[[], None]:
    """A function that shows what a job has said of its validations since it was last called."""
    rest = b""

    def show() -> None:
        nonlocal position, rest
        with path.open("rb") as file:
            file.seek(position)
            new = file.read()
        position += len(new)
        *lines, rest = (rest + new).split(b"\n")
        for line in lines:
            if re.match(rb"update [\d,]+ of [\d,]+, ", line):
                say(f"  {line.decode(errors='replace').rstrip()}")

    return show


def how_it_ended(status: int) -> str:
    """An exit status in words."""
    if status == 0:
        return "ended without results"
    number = -status if status < 0 else status - 128
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"failed with exit status {status}"
    return f"was killed by {name}" if status < 0 else f"was stopped by {name}"


def last_line(path: Path, begin: int) -> str:
    """The last thing that a job said."""
    with path.open("rb") as file:
        file.seek(max(begin, path.stat().st_size - 10_000))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"


def now() -> str:
    return datetime.now().isoformat(sep=" ", timespec="seconds")


class Signals:
    """Notes the signals that ask this process to end, so that its job can be ended first. Ignored ones stay ignored."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.received.append(number)


# ----------------------------------------------------------------------------------------------------- all jobs


class Sweep:
    """The jobs in a sweep's folder.

    Args:
        folder: made with the first job.
        objective: what jobs are compared by, like dev/bleu.
    """

    def __init__(self, folder: Path, objective: str) -> None:
        self.folder, self.objective = folder, objective
        self._lock: Any = None

    @property
    def jobs(self) -> list[Job]:
        """All jobs in the folder, in order."""
        return sorted((Job.read(path.parent) for path in self.folder.glob(f"*/{RECORD}")), key=lambda job: job.number)

    def lock(self) -> None:
        """Keep others out as long as this process lives.

        Raises:
            UserError: if another is in, or the folder is something else's.
        """
        path = self.folder / LOCK
        try:
            if self.folder.exists() and not path.exists() and any(self.folder.iterdir()):
                raise UserError(f"sweep.folder={self.folder} exists and is no sweep's folder")
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = path.open("a")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another sweep is at work in {self.folder}") from None
        except OSError as error:
            raise UserError(f"sweep.folder={self.folder} cannot be used: {error.strerror}") from None

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()

    def job(self, overrides: Sequence[str], varies: Sequence[str], hash: str, number: int | None = None) -> Job:
        """The job of a config: the one that is there, or else a new one, under its number or the next free one."""
        jobs = self.jobs
        for job in jobs:
            if job.hash == hash:
                return job
        number = number or max((job.number for job in jobs), default=0) + 1
        folder = self.folder / "_".join([f"{number:02d}", *slug(varies)])
        while True:
            try:
                folder.mkdir(parents=True)
                break
            except FileExistsError:
                folder = folder.with_name(f"{folder.name}_")
            except OSError as error:
                raise UserError(f"{folder} cannot be made: {error.strerror}") from None
        job = Job(folder, number, tuple(overrides), tuple(varies), hash)
        job.write()
        return job

    def write_tables(self) -> None:
        """Write the comparison of all jobs as CSV and markdown."""
        jobs = self.jobs
        write_bytes(self.folder / "table.csv", as_csv(jobs).encode())
        write_bytes(self.folder / "table.md", as_markdown(jobs).encode())

    def conclude(self) -> None:
        """Show the comparison of all jobs, and write it with a picture."""
        jobs = self.jobs
        self.write_tables()
        say(as_text(jobs, self.folder))
        made = ["table.csv", "table.md"]
        if any(job.results for job in jobs):
            write_bytes(self.folder / "table.png", picture(jobs))
            made.append("table.png")
        if best := self.best(jobs):
            say(f"Best by {self.objective} ({best.value(self.objective):.2f}): job {best.number}, {label(best, jobs)}")
        say(f"Made in {self.folder}/: {', '.join(made)}, and a folder for each job with its checkpoints")

    def best(self, jobs: Sequence[Job]) -> Job | None:
        """The job with the best value of the objective."""
        sign = 1 if direction(self.objective) == "maximize" else -1
        scored = [(sign * value, job) for job in jobs if (value := job.value(self.objective)) is not None]
        return max(scored, key=lambda pair: pair[0])[1] if scored else None


def direction(objective: str) -> str:
    """Which way an objective is better: maximize or minimize."""
    return "maximize" if objective in ("dev/bleu", "dev/chrf") else "minimize"


def outcome(job: Job) -> str:
    """How a job ended, with its score."""
    if job.status != "finished":
        return job.message or job.status
    row = shown(rows([job])[0])
    return f"dev BLEU {row[3]}, {row[8]} minutes"


def failed(job: Job, jobs: Sequence[Job]) -> UserError:
    """What is said of a job that did not end well."""
    return UserError(f"{label(job, jobs)} {outcome(job)} ({job.folder / OUTPUT})")


def some_failed(errors: Iterable[object], n_jobs: int) -> UserError:
    """What is said at the end of a sweep with such jobs."""
    each = list(dict.fromkeys(str(error) for error in errors))
    named = "; ".join(each[:5]) + (f"; and {len(each) - 5} more" if len(each) > 5 else "")
    return UserError(f"{len(each)} of {n_jobs} jobs failed: {named}. The same command again goes on with them")


def run_alone(config: DictConfig, module: str = "diglot.train") -> float | None:
    """Run the job that this process was made for by a launcher other than ours, as ours would: in a process of its own.

    Returns:
        Its objective's value.
    """
    hydra = HydraConfig.get()
    overrides = list(hydra.overrides.task)
    sweep = Sweep(Path(config.sweep.folder or hydra.sweep.dir), config.objective)
    job = sweep.job(overrides, (), config_hash(config), hydra.job.num + 1)
    if job.status != "finished":
        run(job, command(module, hydra, overrides, job.folder), tries_only=config.trainer.fast_dev_run)
        sweep.write_tables()
    if job.status not in ("finished", "tried"):
        raise failed(job, sweep.jobs)
    return job.value(config.objective)


# ---------------------------------------------------------------------------------------------------- what is shown


def label(job: Job, jobs: Sequence[Job]) -> str:
    """What tells a job from the others: the overrides that were varied, or that not all of them have."""
    common = set(job.overrides).intersection(*(other.overrides for other in jobs))
    words = [word for word in job.overrides if not re.match(r"[+~]*(objective|sweep\.|sweep=)", word)]
    return " ".join(word for word in words if word in job.varies or word not in common) or "(nothing changed)"


def slug(words: Sequence[str]) -> list[str]:
    """Overrides as a part of a folder's name, without what shells and the override grammar read."""
    parts = []
    for word in words:
        key, _, value = word.lstrip("+~").partition("=")
        value = f"{float(value):.4g}" if re.fullmatch(r"\d*\.\d{5,}(e-?\d+)?", value) else value
        parts.append(re.sub(r"[^A-Za-z0-9_.]+", "-", f"{re.split('[./@]', key)[-1]}-{value}").strip("-."))
    return ["_".join(parts)[:60].rstrip("-._")] if parts else []


COLUMNS = ("job", "overrides", "status", "dev BLEU", "chrF++", "perplexity", "parameters", "tokens/s", "minutes")


def rows(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """The comparison: a mapping for each job, numbers as they are."""
    found = []
    for job in jobs:
        results = job.results
        best = results.get("best", {})
        values = (best.get("bleu"), best.get("chrf"), best.get("perplexity"))
        values += tuple(results.get(name) for name in ("parameters", "tokens_per_second", "minutes"))
        row: dict[str, Any] = dict(zip(COLUMNS, (job.number, label(job, jobs), job.status, *values), strict=True))
        row["checkpoint"] = str(job.folder / results["checkpoint"]) if "checkpoint" in results else None
        found.append(row)
    return found


def shown(row: Mapping[str, Any]) -> list[str]:
    """A row's values, rounded for reading."""
    digits = {"parameters": 0, "tokens/s": 0, "minutes": 1}
    return [
        "" if value is None else f"{value:,.{digits.get(name, 2)}f}" if name in COLUMNS[3:] else str(value)
        for name, value in row.items()
    ]


def as_csv(jobs: Sequence[Job]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, [*COLUMNS, "checkpoint"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows(jobs))
    return text.getvalue()


def as_markdown(jobs: Sequence[Job]) -> str:
    lines = [[*COLUMNS, "checkpoint"], ["---", "---", "---", *["---:"] * 6, "---"]]
    for row in rows(jobs):
        values = shown(row)
        values[1] = code(values[1])
        lines.append(values)
    return "".join(f"| {' | '.join(value.replace('|', chr(92) + '|') for value in line)} |\n" for line in lines)


def code(text: str) -> str:
    """A text as markdown shows it letter by letter."""
    fence = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    pad = " " if "`" in text else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def as_text(jobs: Sequence[Job], folder: Path) -> str:
    """The comparison for a terminal; checkpoints as they are named in the sweep's folder."""
    table = Table()
    for i, name in enumerate([*COLUMNS, "checkpoint"]):
        table.add_column(name, justify="right" if 3 <= i < 9 else "left", overflow="fold")
    for row in rows(jobs):
        *values, checkpoint = shown(row)
        table.add_row(*(Text(value) for value in (*values, checkpoint.removeprefix(f"{folder}/"))))
    terminal = Console()
    text = io.StringIO()
    Console(file=text, width=terminal.width if terminal.is_terminal else 160).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def picture(jobs: Sequence[Job]) -> bytes:
    """Dev BLEU against parameters and against minutes, as a PNG."""
    from matplotlib.figure import Figure  # only now: it is slow to import

    scored = [row for row in rows(jobs) if row["dev BLEU"] is not None]
    figure = Figure(figsize=(11, 4.5 + 0.2 * len(scored)), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for panel, name, unit in zip(panels, ("parameters", "minutes"), (1e6, 1.0), strict=True):
        for i, row in enumerate(scored):
            if row[name] is None:
                continue
            at = (row[name] / unit, row["dev BLEU"])
            panel.plot(*at, "o", color=f"C{i % 10}", label=f"{row['job']}: {row['overrides']}".replace("$", r"\$"))
            panel.annotate(str(row["job"]), at, xytext=(4, 4), textcoords="offset points", fontsize=9)
        panel.set_xlabel("parameters (millions)" if name == "parameters" else "minutes of training")
        panel.grid(alpha=0.3)
        panel.ticklabel_format(useOffset=False)
    panels[0].set_ylabel("dev BLEU")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower left", fontsize=8, frameon=False)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=120)
    return content.getvalue()


if __name__ == "__main__":
    main()
