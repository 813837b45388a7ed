"""Resuming a run: the point where it resumes, and the checks that it is still the same run."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diglot.checkpoint import file as checkpoints
from diglot.checkpoint.training_state import check_training_state
from diglot.config import (
    Change,
    changes,
    meaning_of,
    monitored,
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
from diglot.evaluation.openings import openings_in
from diglot.evaluation.scorer import recorded_tokenizer
from diglot.runs.contents import NAMES, Contents, changed_contents, comparison_note, contents_in, same_contents
from diglot.runs.folder import CONFIG, RESULTS, STOPPED, is_finished, is_folder_locked, read_results
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


def named_folder(config: Any) -> Path | None:
    """Return the folder that a config names to resume in, whether it exists or not; None if it names none."""
    named = config.run.folder if config.resume == AUTO else config.resume
    return None if named is None else Path(named).expanduser()


def newest_unfinished(folder: str | None, config: dict[str, Any], contents: Contents) -> str | None:
    """Return the folder of the newest unfinished run with a config; None if there is none.

    Args:
        folder: the run's folder; None for any folder under runs/.
        config: the current config.
        contents: the contents that it reads.

    Raises:
        UserError: another process is training such a run.
    """
    folders = [Path(folder).expanduser()] if folder is not None else list(Path("runs").glob("*"))
    unfinished = [path for path in folders if (path / CONFIG).is_file() and not is_finished(path)]
    matching: list[Path] = []
    unfinished.sort(key=lambda path: (path / CONFIG).stat().st_mtime_ns, reverse=True)
    for path in unfinished:
        stored = contents_in(path)
        try:
            differ = changes(read_config(path / CONFIG), config, same_contents(stored, contents))
            if all(change.is_path_only for change in differ):
                refuse_other_contents(str(path), stored, contents)
                matching.append(path)
        except UserError as error:
            say(f"resume=auto: skipping a run, {error}")
    if locked := next((path for path in matching if is_folder_locked(path)), None):
        raise UserError(f"resume=auto: another process is training in {locked}/")
    return str(matching[0]) if matching else None


def finished_line(folder: Path, config: dict[str, Any], read_contents: Callable[[], Contents]) -> str | None:
    """Return a message if the run in a folder is finished and no more updates are requested; otherwise None.

    Args:
        folder: the run's folder.
        config: the current config. If it counts in passes, the length is not known yet, and the result is None.
        read_contents: returns the contents that the config reads.

    Raises:
        UserError: a value or an input has changed, which would have no effect because nothing is trained.
    """
    run = config["run"]
    updates = config["trainer"].get("max_steps") or (run["updates"] if run["passes"] is None else None)
    if not is_finished(folder) or updates is None:
        return None
    stored_config = read_config(folder / CONFIG)
    done = stored_config["run"]["updates"]
    if updates > done:
        return None
    stored_contents, current_contents = contents_in(folder), read_contents()
    if changed := changed_contents(stored_contents, current_contents):
        raise UserError(
            f"{folder}: this run is finished, and {changed} has changed since, so its results are out of date; "
            f"without resume= a new run starts{comparison_note(changed)}"
        )
    other_changes = [
        str(change)
        for change in changes(stored_config, config, same_contents(stored_contents, current_contents))
        if not meaning_of(change.key).settled and not change.is_path_only
    ]
    if other_changes:
        raise UserError(
            f"{folder}: this run is finished, so the changed value would have no effect ({other_changes[0]}); "
            f"to resume it, type run.updates above {done}"
        )
    missing = _not_made(folder, config, has_test="test" in stored_contents)
    return f"{folder}: this run is finished; its results are in {folder / RESULTS}{missing}"


def _not_made(folder: Path, config: dict[str, Any], has_test: bool) -> str:
    """Return what a finished run lacks of what a config asks for, and how to make it."""
    text, trust, form = "", trusted(config), config.get("export")
    is_opened = read_results(folder).get("test") is not None or bool(openings_in(folder))
    if config["run"].get("test") and has_test and not is_opened:
        text += f". The test set was not opened; type {reading('evaluate', folder, trust)} split=test"
    if form is not None and not (folder / form).exists():
        text += f". The model was not exported; type {reading('export', folder, trust)} format={form}"
    return text


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
        UserError: values differ; the message names their keys.
    """
    if not (folder / CONFIG).exists() and (job_config := read_composed(folder)) is not None:
        job_config.run.monitor = monitored(job_config)  # as in a run's config
        differences = changes(without_secrets(job_config), without_secrets(config))
        refuse_other_run(f"resume={folder}: the config differs from that of the sweep's job", differences)


def load_resume_point(
    folder: Path, config: dict[str, Any], tokenizer: Tokenizer, shards: Shards, contents: Contents
) -> ResumePoint:
    """Return the point where the run in a folder resumes, from its newest intact checkpoint.

    Args:
        folder: the run's folder.
        config: the current config.
        tokenizer: the current tokenizer.
        shards: the current training text.
        contents: the contents that the config reads.

    Raises:
        UserError: the run would resume as a different one, or all its checkpoints are damaged.
    """
    stored_contents = contents_in(folder)
    unchanged = same_contents(stored_contents, contents)
    changed = changes(read_config(folder / CONFIG), config, unchanged) if (folder / CONFIG).exists() else []
    refuse_other_run(f"resume={folder}: these values cannot change in a run", changed)
    refuse_other_contents(f"resume={folder}", stored_contents, contents)
    newest = checkpoints.newest_intact(folder)
    if newest is None:
        return ResumePoint(changed=tuple(changed))
    checkpoint, content, damaged = newest
    check_training_state(content, checkpoint)
    record, update, updates = content["diglot"], content["global_step"], config["run"]["updates"]
    since_checkpoint = changes(without_folders(record["config"]), without_folders(config), unchanged)
    refuse_other_run(f"{checkpoint}: this checkpoint belongs to another run", since_checkpoint)
    if not checkpoints.has_tokenizer(record, tokenizer):
        reason = (
            f"the tokenizer is no longer the one that the run began with: diglot {record['version']} built that one, "
            "and another version may build a different one"
        )
        advice = f"init_from={checkpoint} begins a new run with its tokenizer and weights"
        raise UserError(f"resume={folder}: {reason}; {advice}")
    if record.get("data", shards.key) != shards.key:
        reason = f"the training text is no longer the one that the run began with{comparison_note(NAMES['train'])}"
        raise UserError(f"resume={folder}: {reason}")
    for line in damaged:
        say(f"{line}; the run resumes from {checkpoint} (update {update:,})")
    if updates < update:
        raise UserError(f"resume={folder}: run.updates is {updates:,}, and {update:,} are done already")
    state = RunState.from_record(record, update, config["run"]["monitor"])
    if any(change.key == "run.updates" for change in since_checkpoint):  # an extended run continues
        state.has_stopped = False
    return ResumePoint(checkpoint, state, tuple(changed), recorded_tokenizer(record, record["tgt_lang"]))


def refuse_other_contents(subject: str, stored: Contents, current: Contents) -> None:
    """Check that a resumed run reads the same contents as before.

    Raises:
        UserError: they differ; the message names the first changed input.
    """
    if changed := changed_contents(stored, current):
        raise UserError(f"{subject}: {changed} is no longer the one that the run began with{comparison_note(changed)}")


def mark_unfinished(folder: Path, resume_point: ResumePoint, config_yaml: str) -> None:
    """Mark a finished or stopped run as unfinished, and save a copy of its former config if the config changes."""
    (folder / STOPPED).unlink(missing_ok=True)
    if is_finished(folder):
        (folder / RESULTS).rename(folder / f"results_until_{resume_point.state.update}.json")
    for change in resume_point.changed:
        effect = (
            "its content is the same"
            if change.is_path_only
            else f"the new value applies from update {resume_point.state.update + 1:,} on"
        )
        say(f"{change}: {effect}")
    if resume_point.changed:
        old_config = folder / f"config_until_{resume_point.state.update}.yaml"
        if not old_config.exists():
            write_bytes(old_config, (folder / CONFIG).read_bytes())
        write_bytes(folder / CONFIG, config_yaml.encode())
