"""Commands that a user is told to type: whole lines, which a shell and then Hydra's grammar read back as they are
meant, whatever the names in them are. What may be a secret from the environment stands there as the expression that
reads it, which the shell hands on as it is."""

import os
import re
import shlex
import sys
from collections.abc import Iterable, Sequence

from diglot.masking import masked

# What make carries as a variable of its command line. The rest has to go through ARGS: see the head of the Makefile.
_CARRIED = re.compile(r"\+{0,2}(?!(ARGS|PYTHON|LOGDIR|PIP_\w+)=)[A-Za-z_][\w./@]*=(\S.*)?", re.ASCII | re.DOTALL)

# What moves a terminal's cursor, hides or reorders text, or begins another line: control characters of C0 and C1,
# separators of lines, what turns the writing direction round, and halves of surrogate pairs.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def quoted(text: str) -> str:
    """Return a text as a value that Hydra's grammar reads back."""
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


def shell_word(text: str) -> str:
    """Return a word that sh reads back, of printable characters alone and without secrets."""
    text = masked(text)
    if text.isprintable():
        return shlex.quote(text)
    escaped = re.sub(rb"[^A-Za-z0-9_./=-]", lambda found: b"\\%03o" % found[0][0], os.fsencode(text)).decode()
    return f"\"$(printf '{escaped}')\""


def override(key: str, value: object) -> str:
    """Return an override as it is typed into a shell."""
    return shell_word(f"{key}={quoted(str(value))}")


def command_line(command: str, typed: Iterable[str] = (), **values: object) -> str:
    """Return the line to type for a command.

    Args:
        command: like train.
        typed: words of a command line, as a process was given them.
        values: more of them, by key.
    """
    words = [*typed, *(f"{key}={quoted(str(value))}" for key, value in values.items())]
    carried = {word.partition("=")[0]: word for word in words if _CARRIED.fullmatch(word)}  # make keeps one a key
    others = [word for word in words if word not in carried.values()]
    through_args = [f"ARGS={shlex.join(map(masked, others))}"] if others else []
    return " ".join(["make", command, *map(shell_word, [*through_args, *carried.values()])])


def reading(command: str, checkpoint: object, trust: Sequence[str] = ()) -> str:
    """Return the line to type for a command that reads a checkpoint.

    Args:
        command: like evaluate.
        checkpoint: the file.
        trust: modules whose classes it names.
    """
    modules = trust[0] if len(trust) == 1 else f"[{','.join(trust)}]"
    return command_line(command, [f"trust={modules}"] if trust else [], checkpoint=checkpoint)


def resuming(folder: object) -> str:
    """Return the line that goes on with the run of this process: what was typed, and where the run is."""
    typed = [word for word in sys.argv[1:] if not re.match(r"\+*(resume|run\.folder)=", word)]
    return command_line("train", typed, resume=folder)


def printable(text: object, keep: str = "") -> str:
    """Return a text that shows its control characters as escapes, like \\x1b.

    Args:
        text: may come from a file, a config or a file's name.
        keep: characters that stay as they are.
    """

    def escape(match: re.Match[str]) -> str:
        character = match[0]
        return character if character in keep else character.encode("unicode_escape").decode("ascii")

    return _UNPRINTABLE.sub(escape, str(text))
