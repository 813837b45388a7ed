"""Conversion of checkpoints of format 1 to format 2, in place."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diglot.checkpoint import container
from diglot.checkpoint import file as checkpoint
from diglot.checkpoint.huggingface_folder import is_huggingface
from diglot.checkpoint.plain import layout
from diglot.data.text import refuse_address
from diglot.errors import UserError
from diglot.system.atomic import atomic_file, link
from diglot.system.quoting import reading


def files_of(path: str) -> list[list[Path]]:
    """Return the checkpoints named by a file or by a run's folder, each with all its names in the folder.

    Raises:
        UserError: the path names no checkpoint.
    """
    refuse_address("checkpoint", path)
    resolved = Path(path).expanduser().resolve()
    if not resolved.is_dir():
        return [[checkpoint.find(resolved)]]
    if is_huggingface(resolved):
        advice = f"{reading('average', path, output='FILE')} writes it as a checkpoint file"
        raise UserError(f"checkpoint {path}: every command reads this Hugging Face folder as it is; {advice}")
    files: dict[tuple[int, int], list[Path]] = {}
    for file in sorted(resolved.glob("*.ckpt")):
        if file.is_file() and not file.is_symlink():
            files.setdefault((file.stat().st_dev, file.stat().st_ino), []).append(file)
    if not files:
        raise UserError(f"checkpoint {path}: the folder holds no checkpoint (*.ckpt)")
    return list(files.values())


def convert(names: Sequence[Path]) -> bool:
    """Rewrite a checkpoint in format 2, unless it already is in format 2.

    At any time, each of its names refers to a complete checkpoint.

    Args:
        names: the names of one file, which keeps all of them.

    Returns:
        Whether it was rewritten.

    Raises:
        UserError: it is damaged, would not be restored exactly, or cannot be written.
    """
    file, *other_names = names
    content = checkpoint.read(file, warns=False)
    try:
        if not checkpoint.is_of_old_format(file):
            return False
        with atomic_file(file) as temporary:
            container.write(content, temporary)
            temporary.flush()
            if not _same(container.read(Path(temporary.name)), content):
                raise UserError("it would not be restored exactly")
        for name in other_names:
            link(file, name)
    except UserError as error:
        raise UserError(f"checkpoint {file}: left unchanged: {error}") from None
    except OSError as error:
        raise UserError(f"checkpoint {file}: cannot be written ({error.strerror or error})") from None
    return True


def _same(a: Any, b: Any) -> bool:
    """Return whether two values are equal bit for bit, types included; strides may differ if one of them has gaps."""
    pending = [(a, b)]
    while pending:
        a, b = pending.pop()
        if type(a) is not type(b):
            return False
        if isinstance(a, Tensor):
            if not _same_tensor(a, b):
                return False
        elif isinstance(a, (dict, list, tuple)):
            parts_of_a, parts_of_b = list(_parts(a)), list(_parts(b))
            if len(parts_of_a) != len(parts_of_b):
                return False
            pending += zip(parts_of_a, parts_of_b)
        elif repr(a) != repr(b):  # tells 0.0 from -0.0, and treats two NaNs as equal
            return False
    return True


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value
        yield from value.values()
        yield vars(value) if hasattr(value, "__dict__") else None  # torch's state dicts hold versions of modules there
    else:
        yield from value


def _same_tensor(a: Tensor, b: Tensor) -> bool:
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    if a.stride() != b.stride() and "gaps" not in (layout(a.shape, a.stride()), layout(b.shape, b.stride())):
        return False
    return torch.equal(*(each.contiguous().reshape(-1).view(torch.uint8) for each in (a, b)))
