"""Commands for a user to type: complete lines that the shell and then Hydra's grammar parse as intended.

They are quoted, so that names may contain any characters. In an override, a value from the environment that may be a
secret is written as the expression that reads it, which the shell passes on unchanged. In any other word, it is written
as a variable that the shell expands.
"""

import json
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from diglot.system.masking import masked, typable

TYPED = "DIGLOT_TYPED"  # environment variable with what the user typed, for processes that share one command

# Overrides that make passes on as variables of its command line. Others must go through ARGS: see the head of the
# Makefile.
_TYPED_BY_MAKE = re.compile(r"\+{0,2}(?!(ARGS|PYTHON|LOGDIR|PIP_\w+)=)[A-Za-z_][\w./@]*=(\S.*)?", re.ASCII | re.DOTALL)

_KEY = re.compile(r"[+~]*[A-Za-z_][^=]*=|~.*", re.DOTALL)  # start of an override
_TAKES_VALUE = re.compile("--(config-(path|name|dir)|package)|-(cp|cn|cd|p)")  # the next word is no override

# Characters that move a terminal's cursor, hide or reorder text, or begin another line: C0 and C1 control characters,
# line separators, bidirectional controls, and surrogates.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def quoted(text: str) -> str:
    """Return a text in the form of a value that Hydra's grammar parses as this text."""
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


def spelled(value: object) -> str:
    """Return a value of a config as messages show it: text in quotes; null, true and false as in YAML."""
    if isinstance(value, list):
        return f"[{', '.join(map(spelled, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {spelled(entry)}' for key, entry in value.items())}}}"
    return json.dumps(value) if value is None or isinstance(value, bool) else repr(value)


def shell_word(text: str) -> str:
    """Return a word of printable characters that sh expands to this text."""
    if text.isprintable():
        return shlex.quote(text)
    escaped = re.sub(rb"[^A-Za-z0-9_./=-]", lambda match: b"\\%03o" % match[0][0], os.fsencode(text)).decode()
    return f"\"$(printf '{escaped}')\""


def override(key: str, value: object) -> str:
    """Return an override to type into a shell, without secrets."""
    return shell_word(f"{key}={typable(quoted(str(value)))}")


def command_line(command: str, arguments: Iterable[str] = (), **values: object) -> str:
    """Return the line to type for a command.

    Args:
        command: the command's name, such as train.
        arguments: arguments of a command line, as a process received them.
        values: more overrides, by key.
    """
    all_arguments = [*arguments, *(f"{key}={quoted(str(value))}" for key, value in values.items())]
    split = list(_split_keys(all_arguments))
    # make keeps one per key
    by_key = {key: value for key, value in split if key and _TYPED_BY_MAKE.fullmatch(key + value)}
    for_args = [(key, value) for key, value in split if not key or by_key.get(key) != value]
    through_args = [_args(for_args)] if for_args else []
    return " ".join(["make", command, *through_args, *(shell_word(key + typable(by_key[key])) for key in by_key)])


def masked_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a command line without secrets, for reading and not for typing."""
    return [key + masked(value) for key, value in _split_keys(arguments)]


def _split_keys(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Split each argument into the key of an override, which holds no secret, and the rest."""
    for previous, argument in pairwise(["", *arguments]):
        match = None if _TAKES_VALUE.fullmatch(previous) else _KEY.match(argument)
        key = match[0] if match else ""
        yield key, argument.removeprefix(key)


def _args(arguments: Iterable[tuple[str, str]]) -> str:
    """Return the word ARGS=... to type into a shell. `from_make` splits its content again, as a shell would."""
    quoted_arguments = []
    for key, value in arguments:
        text = key + typable(value) if key else typable(value, "\0\\1\0")
        if key or text == value:
            text = shlex.quote(text)
        elif "'" in value:
            text = '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'
        elif shlex.quote(value) != value:
            text = shlex.quote(text)
        quoted_arguments.append(text)
    parts = re.split("\0(.*?)\0", f"ARGS={' '.join(quoted_arguments)}")
    return "".join(f'"${part}"' if i % 2 else shell_word(part) for i, part in enumerate(parts) if part)


def reading(command: str, checkpoint: object, trust: Sequence[str] = (), **values: object) -> str:
    """Return the line to type for a command that reads a checkpoint.

    Args:
        command: the command's name, such as evaluate.
        checkpoint: the checkpoint's file.
        trust: modules whose classes the checkpoint names.
        values: more overrides, by key.
    """
    modules = trust[0] if len(trust) == 1 else f"[{','.join(trust)}]"
    return command_line(command, [f"trust={modules}"] if trust else [], checkpoint=checkpoint, **values)


def resuming(folder: object) -> str:
    """Return the line to type to resume this process's run: its arguments, with the run's folder."""
    arguments = json.loads(os.environ[TYPED]) if TYPED in os.environ else sys.argv[1:]
    kept_arguments = [argument for argument in arguments if not re.match(r"\+*(resume|run\.folder)=", argument)]
    return command_line("train", kept_arguments, resume=folder)


def printable(text: object, keep: str = "") -> str:
    """Return a text with its control characters shown as escapes, such as \\x1b.

    Args:
        text: any object, such as text from a file, a config or a file's name.
        keep: characters that stay as they are.
    """

    def escape(match: re.Match[str]) -> str:
        character = match[0]
        return character if character in keep else character.encode("unicode_escape").decode("ascii")

    return _UNPRINTABLE.sub(escape, str(text))
