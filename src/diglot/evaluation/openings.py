"""The record of how often a test set was opened: each time that a system was scored on it.

Whoever looks at test scores and then trains again begins to select by them. Therefore each run's folder has a ledger of
these openings, and results say how many there were.
"""

import errno
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from diglot.data.text import ParallelText, file_hash
from diglot.system.atomic import atomic_file, lock_name, locked
from diglot.system.masking import masked
from diglot.system.quoting import masked_arguments, printable

LEDGER = "test_openings.jsonl"  # one JSON object per opening
# The commands of openings that are not known better: only results show them, as those of earlier versions do, or their
# line in the ledger is damaged.
UNRECORDED, UNREADABLE = "unrecorded", "unreadable"


class Opening(NamedTuple):
    """An opening in a ledger.

    Attributes:
        command: the name of the command, such as diglot-evaluate.
        text: the hash of the test text; None: unknown, so that it may be any text.
    """

    command: str
    text: str | None


@dataclass(frozen=True)
class Ledger:
    """The ledger for the openings by one command and one system.

    Attributes:
        command: the name of the command.
        system: the name of the checkpoint, or of the file of hypotheses.
        folder: the run's folder; None if the file is no checkpoint of a run.
        sha256: the hash of the checkpoint; None without a folder.
    """

    command: str
    system: str
    folder: Path | None
    sha256: str | None

    @classmethod
    def of(cls, command: str, file: Path, folder: Path | None) -> "Ledger":
        """Return the ledger for a file. Call it when the file is loaded, since another one may replace it later."""
        return cls(command, file.name, folder, file_hash(file) if folder is not None else None)

    def record(self, name: str, pairs: ParallelText, scores: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Record an opening. Call it when the scores are known, and before anything shows them.

        Args:
            name: the name of the corpus.
            pairs: the test text.
            scores: the scores of the system.

        Returns:
            The number of openings of this text, including this one, by command, and where they are recorded. If this
            opening cannot be recorded, the reason is included, and nothing is raised.
        """
        own = Opening(self.command, text_hash(pairs))
        found: dict[str, Any] = {"text": own.text, "times": None, "commands": None, "ledger": None}
        if self.folder is None:
            return {**found, "not_recorded": f"{self.system} is no checkpoint in a run's folder"}
        path = self.folder / LEDGER
        line = {
            "time": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
            "command": self.command,
            "arguments": masked_arguments(sys.argv[1:]),
            "checkpoint": self.system,
            "sha256": self.sha256,
            "set": masked(name),
            "text": own.text,
            "scores": list(scores),
        }
        reason = None
        try:
            openings = _append(path, line)
        except OSError as error:
            openings = [*openings_in(self.folder), own]
            reason = f"{masked(str(path))} cannot be written ({error.strerror})"
        commands = Counter(opening.command for opening in openings if opening.text in (own.text, None))
        counts = {"times": commands.total(), "commands": dict(commands), "ledger": masked(str(path))}
        return {**found, **counts, "not_recorded": reason}


def text_hash(pairs: ParallelText) -> str:
    """Return a hash of a test text, which is the same for the copy of the text in a run's folder."""

    def stripped(lines: Sequence[str]) -> list[str]:
        # Reading a copy drops a byte order mark and a carriage return at the end of a line.
        return [line.strip("\ufeff\r") for line in lines]

    more = tuple([None if line is None else line.strip("\ufeff\r") for line in lines] for lines in pairs.more)
    return ParallelText(stripped(pairs.src), stripped(pairs.tgt), more).digest()


def openings_in(folder: Path) -> list[Opening]:
    """Return the openings that a run's folder shows. A damaged line of its ledger counts as one, of any text."""
    try:
        content = _read(folder / LEDGER)
    except OSError:
        return []
    if content is None:
        return _unrecorded(folder)
    return [_parsed(line) for line in content.splitlines() if line.strip()]


def told(found: Mapping[str, Any]) -> str:
    """Return how often a test set was opened, from what `Ledger.record` has returned, as a line to print."""
    if found["times"] is None:
        return printable(f"Test opened; not recorded: {found['not_recorded']}")
    by_command = ", ".join(f"{command} {times}" for command, times in found["commands"].items())
    if found["times"] == 1:
        counts = f"for the first time, by {', '.join(found['commands'])}"
    else:
        counts = f"{found['times']:,} times ({by_command})"
    if found["not_recorded"] is not None:
        return printable(f"Test opened {counts}; this time is not recorded: {found['not_recorded']}")
    return printable(f"Test opened {counts}, see {found['ledger']}")


def _append(path: Path, line: Mapping[str, Any]) -> list[Opening]:
    """Append a line to a ledger, and return its openings. The ledger is on disk when this returns.

    A last line that was only half written stays, as a line of its own.

    Raises:
        OSError: the ledger cannot be written; it is then unchanged.
    """
    with locked(lock_name(path), nullcontext):
        content = _read(path)
        if content is None:
            content = b"".join(_as_line(opening._asdict()) for opening in _unrecorded(path.parent))
        elif content and not content.endswith(b"\n"):
            content += b"\n"
        with atomic_file(path) as file:
            file.write(content + _as_line(line))
        return openings_in(path.parent)


def _as_line(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def _read(path: Path) -> bytes | None:
    """Return the content of a ledger; None if there is none.

    Raises:
        OSError: it cannot be read, or something other than a file has its name.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):  # reading a pipe would block
        raise OSError(errno.EINVAL, "not a regular file")
    return path.read_bytes() if path.exists() else None


def _parsed(line: bytes) -> Opening:
    """Return the opening in a line of a ledger."""
    try:
        content = json.loads(line)
        opening = Opening(content["command"], content["text"])
    except (ValueError, KeyError, TypeError, RecursionError):
        opening = Opening(UNREADABLE, None)
    is_valid = isinstance(opening.command, str) and isinstance(opening.text, str | None)
    return opening if is_valid else Opening(UNREADABLE, None)


def _unrecorded(folder: Path) -> list[Opening]:
    """Return the opening that the results in a run's folder without a ledger show, if there are any."""
    results = folder / "evaluation" / "test" / "results.json"
    return [Opening(UNRECORDED, None)] if results.is_file() else []
