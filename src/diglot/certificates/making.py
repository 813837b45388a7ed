"""Making the certificate of one run, or of several that differ by their seeds alone."""

import json
import re
import statistics
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from diglot.certificates.content import FORMAT, Certificate, FirstUpdates, Mean, Run, Score, Test
from diglot.certificates.facts import BEST, RunFolder, device_of, different_texts, environment_of, training_of
from diglot.checkpoint import file as checkpoints
from diglot.config import build_corpus, changes, check_run_config, read_config
from diglot.data.corpus import SPLITS
from diglot.data.options import DataOptions
from diglot.data.text import refuse_address
from diglot.errors import UserError
from diglot.evaluation.scorer import label
from diglot.runs.contents import contents_in, same_contents
from diglot.runs.first_updates import N_UPDATES, first_losses
from diglot.runs.folder import CONFIG, ENVIRONMENT, JOB, environment, read_results, refuse_links
from diglot.system.machine import using_threads
from diglot.system.masking import in_one_line, masked
from diglot.system.progress import step
from diglot.system.quoting import command_line, printable

ENOUGH_SEEDS = 3
# All but the last part of an absolute path (/data/x.de, ~/x.de, C:\x.de) at the start of a value, quoted or not.
_FOLDERS = re.compile(
    r"""(?<=')(?:~|/|[A-Za-z]:[/\\]|\\\\)[^']*[/\\](?=[^'])"""
    r"""|(?<=")(?:~|/|[A-Za-z]:[/\\]|\\\\)[^"]*[/\\](?=[^"])"""
    r"""|(?:(?<=[=,\[\s])|\A)(?:~|/|[A-Za-z]:[/\\]|\\\\)[^\s,'"\[\]{}]*[/\\](?=[^\s,\]])"""
)


def run_folder(path: str) -> Path:
    """Return the folder of a run that a path names.

    Raises:
        UserError: the path is no such folder, or links lead out of it.
    """
    refuse_address("checkpoint", path)
    folder = Path(path).expanduser()
    if folder.is_file():
        reason = "is a file, but a certificate is one of a whole run: give the run's folder, checkpoint=runs/NAME"
        raise UserError(f"checkpoint={path}: {reason}")
    if not folder.is_dir():
        raise UserError(f"checkpoint={path}: no such folder")
    if not (folder / CONFIG).is_file():
        raise UserError(f"checkpoint={path}: there is no run in it (no {CONFIG})")
    refuse_links(folder)
    return folder


def finished_run(path: str) -> Path:
    """Return the folder of a finished run that a path names.

    Raises:
        UserError: the path names no run, or one that is not finished.
    """
    folder = run_folder(path)
    if not read_results(folder):
        advice = f"to finish it, repeat its command with resume={path}"
        raise UserError(f"checkpoint={path}: the run is not finished; {advice}")
    return folder


def certify(folders: Sequence[Path], trust: Collection[str] = ()) -> Certificate:
    """Return the certificate of runs.

    Args:
        folders: the folders of the runs; see `finished_run`.
        trust: the user's own modules whose classes the runs name.

    Raises:
        UserError: the runs differ by more than their seeds, or something is missing in a folder.
    """
    refuse_other_configurations(folders)
    runs = sorted((_run(folder, trust) for folder in folders), key=lambda run: run["seed"])
    of_tests = [run["test"]["scores"] for run in runs if run["test"] is not None]
    return {
        "diglot_certificate": FORMAT,
        "note": note(len(runs)),
        "environment": environment_of(environment([], {})),
        "runs": runs,
        "dev": means([run["dev"] for run in runs]),
        "test": means(of_tests) if len(of_tests) == len(runs) else [],
    }


def note(n: int) -> str | None:
    """Return a remark if there are too few seeds for a standard deviation to mean much."""
    if n >= ENOUGH_SEEDS:
        return None
    seeds = "1 seed" if n == 1 else f"{n} seeds"
    return f"{seeds}: at least {ENOUGH_SEEDS} are needed for a meaningful standard deviation"


def means(of_runs: Sequence[Sequence[Score]]) -> list[Mean]:
    """Return the mean and the standard deviation (with n - 1) of each metric over the runs."""
    values = [{score["name"]: score["value"] for score in scores} for scores in of_runs]
    names = [name for name in values[0] if all(name in each for each in values)]
    columns = {name: [each[name] for each in values] for name in names}
    return [
        {
            "name": name,
            "mean": statistics.fmean(column),
            "deviation": statistics.stdev(column) if len(column) > 1 else None,
        }
        for name, column in columns.items()
    ]


def refuse_other_configurations(folders: Sequence[Path]) -> None:
    """Check that runs differ by their seeds alone.

    Raises:
        UserError: they differ otherwise, or two have the same seed.
    """
    first = folders[0]
    config, contents = read_config(first / CONFIG), contents_in(first)
    seeds = {config.get("seed"): first}
    for folder in folders[1:]:
        other, others_contents = read_config(folder / CONFIG), contents_in(folder)
        unchanged = same_contents(contents, others_contents)
        found = [change for change in changes(config, other, unchanged) if change.key != "seed"]
        found = [change for change in found if not change.is_path_only]
        if found:
            raise UserError(f"{folder}: is no run of the same configuration as {first}: {found[0]}")
        if changed := different_texts(contents, others_contents):
            raise UserError(f"{folder}: its {changed[0]} text is not that of {first}")
        if other.get("seed") in seeds:
            raise UserError(f"{folder}: has the same seed as {seeds[other.get('seed')]}, {other.get('seed')}")
        seeds[other.get("seed")] = folder


def _run(folder: Path, trust: Collection[str]) -> Run:
    """Return what a certificate states about the run in a folder."""
    config, results = read_config(folder / CONFIG), read_results(folder)
    stored = _read_environment(folder)
    loaded = checkpoints.load(folder / BEST, trust)
    record = loaded.record
    run = RunFolder(folder, record["src_lang"], record["tgt_lang"])
    dev, has_test = run.scores("dev", record), (folder / run.outputs("test")).is_file()
    _refuse_other_scores(folder, dev, results)
    test: Test | None = {"scores": run.scores("test", record), "openings": run.openings()} if has_test else None
    with step(f"{printable(folder)}: the first {N_UPDATES} updates"):
        updates = _first_updates(config, run, record, stored.get("threads", 1), trust)
    return {
        "name": folder.resolve().name,
        "seed": config["seed"],
        "command": command_of(folder, stored),
        "languages": [run.src_lang, run.tgt_lang],
        "parameters": results["parameters"],
        "training": training_of(config, loaded, contents_in(folder).get("init_from")),
        "updates": results["updates"],
        "best_update": record["update"],
        "environment": environment_of(stored),
        "text": {split: text for split, text in contents_in(folder).items() if split in SPLITS},
        "files": run.files(),
        "validations": run.validations(),
        "dev": dev,
        "test": test,
        "first_updates": updates,
    }


def _read_environment(folder: Path) -> dict[str, Any]:
    try:
        stored = json.loads((folder / ENVIRONMENT).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{folder / ENVIRONMENT}: cannot be read ({in_one_line(error)})") from None
    environment_of(stored)
    return stored  # type: ignore[no-any-return]


def _refuse_other_scores(folder: Path, scores: Sequence[Score], results: Mapping[str, Any]) -> None:
    """Check that the kept dev outputs have the scores that the run has reported for its best checkpoint.

    Raises:
        UserError: a score differs.
    """
    reported = {label(name): value for name, value in results["best"].items()}
    for score in scores:
        value = reported.get(score["name"], score["value"])
        if abs(value - score["value"]) > 1e-6:
            raise UserError(
                f"{folder}: the kept dev outputs have {score['name']} {score['value']:.4f}, but the run has reported "
                f"{value:.4f}: they are not its outputs, or another version of sacreBLEU is installed"
            )


def _first_updates(
    config: Mapping[str, Any], run: RunFolder, record: Mapping[str, Any], n_threads: int, trust: Collection[str]
) -> FirstUpdates:
    """Return the losses of the first updates, or why they cannot be computed."""
    device = device_of(config)
    losses: list[float] = []
    missing = None
    with using_threads(n_threads) as threads:
        try:
            check_run_config(config, trust)
            corpus = build_corpus(OmegaConf.create(dict(config["data"])))
            cache_dir = config["data"].get("cache_dir", DataOptions.cache_dir)
            found = {split: text.digest() for split, text in corpus.read_checked(Path(cache_dir)).items()}
            if changed := different_texts(contents_in(run.path), found):
                raise UserError(f"the {changed[0]} text has changed since the run")
            losses = first_losses(config, corpus, run.tokenizer(record), cache_dir, device, trust)
        except (UserError, OSError) as error:
            missing = without_folders_in(masked(in_one_line(error)))
    precision = str(config["trainer"]["precision"])
    return {"device": device, "threads": threads, "precision": precision, "losses": losses, "missing": missing}


def command_of(folder: Path, stored: Mapping[str, Any]) -> str:
    """Return the command that trained a run, as a line to type. Only the last part remains of an absolute path."""
    arguments = list(map(str, stored.get("command", [])))
    if (folder / JOB).is_file():  # a sweep has started it, with a config of its own
        try:
            arguments = list(map(str, json.loads((folder / JOB).read_bytes())["overrides"]))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            raise UserError(f"{folder / JOB}: damaged") from None
    return masked(command_line("train", [without_folders_in(argument) for argument in arguments]))


def without_folders_in(text: str) -> str:
    """Return a text in which only the last part remains of each absolute path: other parts may name a user."""
    return _FOLDERS.sub("", text)
