"""The output of a command: to a file, or to standard output."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from diglot.data.text import refuse_address
from diglot.errors import UserError
from diglot.system.atomic import atomic_file, scratch_folder
from diglot.system.streams import failure


@contextmanager
def written(path: str | None, key: str = "output") -> Iterator[Callable[[str], None]]:
    """Yield a function that writes text to a file atomically, or to standard output immediately.

    Args:
        path: the path of the file; None: standard output. A pipe or a device such as /dev/stdout is written directly.
        key: the config key of the path, for messages.

    Raises:
        UserError: the output cannot be written.
        BrokenPipeError: the reader of standard output has closed it.
    """
    if path is not None:
        refuse_address(key, path, "a file is needed")
        file = Path(path).expanduser()
        if file.is_dir():
            raise UserError(f"{key}={path}: is a folder, but a file is needed")
        is_special = file.exists() and not file.is_file()
        with _explained(path), file.open("wb") if is_special else atomic_file(file.resolve()) as stream:

            def write_file(text: str) -> None:
                stream.write(text.encode())

            yield write_file
        return

    def write(text: str) -> None:
        with _explained("standard output"):
            sys.stdout.buffer.write(text.encode())
            sys.stdout.buffer.flush()
            if error := failure(sys.stdout):
                raise error

    yield write


@contextmanager
def _explained(name: str) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UserError(f"{name}: cannot be written ({error.strerror})") from None


def refuse_same(outputs: Mapping[str, str | None], inputs: Mapping[str, str | Path | None]) -> None:
    """Check that the outputs of a command are different files, and none of them is an input.

    Args:
        outputs: paths of outputs, by key.
        inputs: paths of inputs, by key.

    Raises:
        UserError: two keys have the same file. The message names them.
    """
    seen: dict[Path, str] = {}
    for key, path in [*inputs.items(), *outputs.items()]:
        if path is None:
            continue
        file = Path(path).expanduser().resolve()
        if key in outputs and file in seen:
            raise UserError(f"{key}={path}: is also the {seen[file]}; name another file")
        seen[file] = key


def refuse_unwritable(folder: Path) -> None:
    """Check that a folder can be written, before its content is computed.

    Raises:
        UserError: the folder cannot be written.
    """
    try:
        with scratch_folder(folder):
            pass
    except FileExistsError:
        raise UserError(f"{folder} cannot be created: {folder.parent} is not a folder") from None
    except OSError as error:
        raise UserError(f"{folder} cannot be created: {error.strerror}") from None
