"""Reader of JSON Lines files.

`datasets` reads them too, but it rewrites text that looks like a date. If a number appears late in a column of text, it
puts quotes around all of the text.
"""

import json
from collections.abc import Iterator
from typing import Any

from diglot.data.text import read_blocks
from diglot.errors import UserError


def json_objects(path: str, size: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a JSON Lines file with their line numbers; skip blank lines.

    Args:
        path: path of the file.
        size: number of lines to read at a time.

    Raises:
        UserError: a line does not hold an object, or `read_blocks` refuses the file.
    """
    number = 0
    for lines in read_blocks(path, size):
        for line in lines:
            number += 1
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise UserError(
                    f"{path}, line {number}: not valid JSON; each line must be a JSON object "
                    f"({error.msg}, column {error.colno})"
                ) from None
            except (ValueError, RecursionError) as error:
                raise UserError(f"{path}, line {number}: not readable as JSON ({error})") from None
            if not isinstance(row, dict):
                raise UserError(f"{path}, line {number}: a JSON {type(row).__name__}; each line must be a JSON object")
            yield number, row


def checked_text(value: object, path: str, number: int) -> str | None:
    """Return a value of an object if it is text or null.

    Raises:
        UserError: the value is of another type, or it cannot be encoded in UTF-8.
    """
    if value is None:
        return None
    if not isinstance(value, str):
        raise UserError(
            f"{path}, line {number}: a sentence has type {type(value).__name__}, not text: {str(value)[:60]}"
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UserError(f"{path}, line {number}: a sentence contains a lone surrogate (half a character)") from None
    return value
