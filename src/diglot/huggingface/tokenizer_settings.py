"""Checks of the JSON files of a tokenizer before their values are used."""

from collections.abc import Callable, Mapping
from typing import Any

from diglot.errors import UserError
from diglot.system.masking import shortened

_TOKENS = ("pad_token", "unk_token", "bos_token", "eos_token", "mask_token", "mask_token_sent")


def check_settings(file: str, settings: Mapping[str, Any]) -> None:
    """Check the values in tokenizer_config.json or special_tokens_map.json. Any of them may be missing or null.

    Raises:
        UserError: a value is of another form. The message names the file and the key.
    """
    for key, (is_valid, form) in _FORMS.items():
        value = settings.get(key)
        if value is not None and not is_valid(value):
            raise UserError(f"{file}: {key}={shortened(value, 60)}: must be {form}")


def number(file: str, settings: Mapping[str, Any], key: str, default: int, most: int) -> int:
    """Return a number of pieces that a file gives.

    Raises:
        UserError: it is not an integer from 0 to `most`, so that the pieces could take any amount of memory.
    """
    value = settings.get(key, default)
    if not is_integer(value) or not 0 <= value <= most:
        raise UserError(f"{file}: {key}={shortened(value, 60)}: must be an integer from 0 to {most:,}")
    return int(value)


def check_ids(file: str, ids: Mapping[str, Any]) -> None:
    """Check that a file has an id for each piece, as vocab.json and added_tokens.json have.

    Raises:
        UserError: an id is not an integer, or it is negative.
    """
    for piece, i in ids.items():
        if not is_integer(i) or i < 0:
            raise UserError(
                f"{file}: the id of {shortened(piece, 60)!r} is {shortened(i, 60)}: must be an integer from 0"
            )


def is_integer(value: Any) -> bool:
    """Return whether a value is an integer; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_token(value: Any) -> bool:
    """Return whether a value is a token: its text, or a mapping with its text as content."""
    return isinstance(value, str) or (isinstance(value, Mapping) and isinstance(value.get("content"), str))


def _are_tokens(value: Any) -> bool:
    return isinstance(value, (list, Mapping)) and all(map(_is_token, value))


def _are_tokens_by_id(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        i.isdecimal() and isinstance(token, Mapping) and _is_token(token) for i, token in value.items()
    )


_Form = tuple[Callable[[Any], bool], str]
_FORMS: dict[str, _Form] = {
    **dict.fromkeys(_TOKENS, (_is_token, "a text, or a mapping with the key content")),
    **dict.fromkeys(("additional_special_tokens", "extra_special_tokens"), (_are_tokens, "a list of texts")),
    "added_tokens_decoder": (_are_tokens_by_id, "a mapping from ids to mappings with the key content"),
}
