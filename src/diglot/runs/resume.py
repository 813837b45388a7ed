"""Resuming a run: the point where it resumes, and the checks that it is still the same run."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diglot.checkpoint import file as checkpoints
from diglot.config import (
    Change,
    changes,
    meaning_of,
    read_composed,
    read_config,
    refuse_other_run,
    trusted,
    without_folders,
    without_secrets,
)
from diglot.data.shards import Shards
from diglot.data.text import write_bytes
from diglot.data.tokenizer import Tokenizer
from diglot.errors import RESUME_ME, UserError
from diglot.evaluation.metrics import recorded_tokenizer
from diglot.runs.contents import NAMES, Contents, changed_contents, contents_in, how_compared, same_contents
from diglot.runs.folder import CONFIG, RESULTS, is_finished, is_folder_locked
from diglot.system.console import say
from diglot.system.quoting import reading, resuming
from diglot.training.state import RunState

AUTO = "auto"  # resume=auto


@dataclass(frozen=True)
class ResumePoint:
    """The point where a run resumes.

    Attributes:
        checkpoint: the file to resume from; None if the run has no checkpoint yet.
        state: state of the run.
        changed: changes of the config that apply from this point on.
        bleu_tokenizer: BLEU's tokenizer up to this point; None if unknown.
    """

    checkpoint: Path | None = None
    state: RunState = field(default_factory=RunState)
    changed: tuple[Change, ...] = ()
    bleu_tokenizer: str | None = None


def newest_unfinished(folder: str | None, config: dict[str, Any], now: Contents) -> str | None:
    """Return the folder of the newest unfinished run with a config; None if there is none.

    Args:
        folder: the run's folder; None for any folder under runs/.
        config: the current config.
        now: the contents that it reads.

    Raises:
        UserError: if another process is training such a run.
    """
    folders = [Path(folder).expanduser()] if folder is not None else list(Path("runs").glob("*"))
    begun = [each for each in folders if (each / CONFIG).is_file() and not is_finished(each)]
    found: list[Path] = []
    begun.sort(key=lambda each: (each / CONFIG).stat().st_mtime_ns, reverse=True)
    for each in begun:
        before = contents_in(each)
        try:
            differ = changes(read_config(each / CONFIG), config, same_contents(before, now))
            if all(change.is_path_only for change in differ):
                refuse_other_contents(str(each), before, now)
                found.append(each)
        except UserError as error:
            say(f"resume=auto: skipping a run, {error}")
    if held := next((each for each in found if is_folder_locked(each)), None):
        raise UserError(f"resume=auto: another process is training in {held}/")
    return str(found[0]) if found else None


def finished_line(folder: Path, config: dict[str, Any], read_now: Callable[[], Contents]) -> str | None:
    """Return a message if the run in a folder is finished and no more updates are requested; otherwise None.

    Args:
        folder: the run's folder.
        config: the current config. If it counts in passes, the length is not known yet, and the result is None.
        read_now: returns the contents that the config reads.

    Raises:
        UserError: if a value or an input has changed, which would have no effect because nothing is trained.
    """
    run = config["run"]
    wanted = config["trainer"].get("max_steps") or (run["updates"] if run["passes"] is None else None)
    if not is_finished(folder) or wanted is None:
        return None
    before = read_config(folder / CONFIG)
    done = before["run"]["updates"]
    if wanted > done:
        return None
    read_before, now = contents_in(folder), read_now()
    if changed := changed_contents(read_before, now):
        raise UserError(
            f"{folder}: this run is finished, and {changed} has changed since, so its results are out of date; "
            f"without resume= a new run starts{how_compared(changed)}"
        )
    found = [
        str(change)
        for change in changes(before, config, same_contents(read_before, now))
        if not meaning_of(change.key).settled and not change.is_path_only
    ]
    if found:
        raise UserError(
            f"{folder}: this run is finished, so the changed value would have no effect ({found[0]}); "
            f"to resume it, type run.updates above {done}"
        )
    told = f"{folder}: this run is finished; its results are in {folder / RESULTS}"
    form = config.get("export")
    if form is None or (folder / form).exists():
        return told
    return f"{told}. The model was not exported; type {reading('export', folder, trusted(config))} format={form}"


def outcome(folder: Path) -> tuple[int | None, str]:
    """Return the exit status and the advice if a signal ends a run before its first update or after its last one.

    Returns:
        The exit status (None: that of the signal), and what to type next.
    """
    if not (folder / CONFIG).is_file():
        return None, ""
    if checkpoints.has_intact(folder):
        return RESUME_ME, f"{resuming(folder)} resumes the run from its last checkpoint."
    return None, f"There is no checkpoint yet. {resuming(folder)} resumes the run from the start."


def refuse_other_job(folder: Path, config: Any) -> None:
    """Check that a sweep's job starts with the config stored in its folder. A job that has started is not checked here.

    Raises:
        UserError: naming the keys whose values differ.
    """
    if not (folder / CONFIG).exists() and (carried := read_composed(folder)) is not None:
        found = changes(without_secrets(carried), without_secrets(config))
        refuse_other_run(f"resume={folder}: the config differs from that of the sweep's job", found)


def load_resume_point(
    folder: Path, config: dict[str, Any], tokenizer: Tokenizer, shards: Shards, now: Contents
) -> ResumePoint:
    """Return the point where the run in a folder resumes, from its newest intact checkpoint.

    Args:
        folder: the run's folder.
        config: the current config.
        tokenizer: the current tokenizer.
        shards: the current training text.
        now: the contents that the config reads.

    Raises:
        UserError: if the run would resume as a different one, or if all its checkpoints are damaged.
    """
    before = contents_in(folder)
    same = same_contents(before, now)
    changed = changes(read_config(folder / CONFIG), config, same) if (folder / CONFIG).exists() else []
    refuse_other_run(f"resume={folder}: these values cannot change in a run", changed)
    refuse_other_contents(f"resume={folder}", before, now)
    found = checkpoints.newest_intact(folder)
    if found is None:
        return ResumePoint(changed=tuple(changed))
    checkpoint, content, damaged = found
    checkpoints.check_training_state(content, checkpoint)
    record, update, updates = content["diglot"], content["global_step"], config["run"]["updates"]
    since_checkpoint = changes(without_folders(record["config"]), without_folders(config), same)
    refuse_other_run(f"{checkpoint}: this checkpoint belongs to another run", since_checkpoint)
    if not checkpoints.has_tokenizer(record, tokenizer):
        told = (
            f"the tokenizer is no longer the one that the run began with: diglot {record['version']} built that one, "
            "and another version may build a different one"
        )
        instead = f"init_from={checkpoint} begins a new run with its tokenizer and weights"
        raise UserError(f"resume={folder}: {told}; {instead}")
    if record.get("data", shards.key) != shards.key:
        told = f"the training text is no longer the one that the run began with{how_compared(NAMES['train'])}"
        raise UserError(f"resume={folder}: {told}")
    for line in damaged:
        say(f"{line}; the run resumes from {checkpoint} (update {update:,})")
    if updates < update:
        raise UserError(f"resume={folder}: run.updates is {updates:,}, and {update:,} are done already")
    state = RunState.from_record(record, update)
    if any(change.key == "run.updates" for change in since_checkpoint):  # an extended run continues
        state.has_stopped = False
    return ResumePoint(checkpoint, state, tuple(changed), recorded_tokenizer(record, record["tgt_lang"]))


def refuse_other_contents(what: str, before: Contents, now: Contents) -> None:
    """Check that a resumed run reads the same contents as before.

    Raises:
        UserError: if they differ; the message names the first changed input.
    """
    if changed := changed_contents(before, now):
        raise UserError(f"{what}: {changed} is no longer the one that the run began with{how_compared(changed)}")


def mark_unfinished(folder: Path, begun: ResumePoint, config_yaml: str) -> None:
    """Mark a finished run as unfinished, and save a copy of its former config if the config changes."""
    if is_finished(folder):
        (folder / RESULTS).rename(folder / f"results_until_{begun.state.update}.json")
    for change in begun.changed:
        from_now = (
            "its content is the same"
            if change.is_path_only
            else f"the new value applies from update {begun.state.update + 1:,} on"
        )
        say(f"{change}: {from_now}")
    if begun.changed:
        before = folder / f"config_until_{begun.state.update}.yaml"
        if not before.exists():
            write_bytes(before, (folder / CONFIG).read_bytes())
        write_bytes(folder / CONFIG, config_yaml.encode())
