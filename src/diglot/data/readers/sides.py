"""The choice of the two sides among the languages or columns of a file that holds both."""

from collections.abc import Sequence
from typing import NamedTuple

from diglot.data.language import has_same_language, language_of_column
from diglot.errors import UserError
from diglot.system.quoting import printable

Column = int | str  # the number of a column, from 0, or its name
Side = tuple[Column, ...]  # the columns, or the language, that make one side
BY_DEFAULT: tuple[Side, Side] = ((0,), (1,))
# Names of columns that say which side they are, in the order of preference.
_SOURCES, _TARGETS = ("source", "src", "input"), ("target", "tgt", "output", "translation")
_UNKNOWN = {"src", "tgt"}  # names of the sides of formats that need not give their languages
_MOST_SHOWN = 20


class Languages(NamedTuple):
    """The languages or named columns of a file.

    Attributes:
        names: languages or columns, as the file spells them, in its order.
        source: the one that the file declares as its source.
        target: the one that the file declares as its target.
        are_columns: whether `names` are names of columns, which need not be languages.
        are_numbered: whether the columns can also be selected by number, and `names` are just the first row.
    """

    names: list[str]
    source: str | None = None
    target: str | None = None
    are_columns: bool = False
    are_numbered: bool = False


class Wanted(NamedTuple):
    """What the user asks for: two columns, or two languages, and further references.

    Attributes:
        columns: data.columns.
        src_lang: data.src_lang, if given.
        tgt_lang: data.tgt_lang, if given.
        references: the columns, or the language, of each further reference.
    """

    columns: tuple[Side, Side] = BY_DEFAULT
    src_lang: str | None = None
    tgt_lang: str | None = None
    references: tuple[Side, ...] = ()


def has_names(columns: Sequence[Side]) -> bool:
    """Return whether columns are given by name."""
    return any(isinstance(column, str) for side in columns for column in side)


def typed(sides: Sequence[Side]) -> str:
    """Return sides as the user types them."""
    return str([side[0] if len(side) == 1 else list(side) for side in sides])


def sides_of(key: str, columns: Sequence[Column | Sequence[Column]]) -> tuple[Side, ...]:
    """Return columns, and lists of columns, as sides.

    Raises:
        UserError: they are not names only or numbers only; the message begins with `key`.
    """
    sides = tuple((column,) if isinstance(column, (int, str)) else tuple(column) for column in columns)
    parts = [column for side in sides for column in side]
    if not all(sides) or not all(isinstance(column, (int, str)) for column in parts):
        told = "a side is a column or a list of columns, as in [[lemma,features],form]"
        raise UserError(f"{key}={typed(sides)}: {told}")
    if len({isinstance(column, str) for column in parts}) > 1:
        raise UserError(f"{key}={typed(sides)}: must be numbers only, or names only")
    if any(isinstance(column, int) and column < 0 for column in parts):
        raise UserError(f"{key}={typed(sides)}: column numbers must be at least 0")
    return sides


def choose(found: Languages, wanted: Wanted, path: str) -> tuple[Side, Side]:
    """Return the source and the target side of a file.

    Columns come before languages, and languages before what the file declares. Nothing is guessed.

    Args:
        found: what the file holds.
        wanted: what the user asks for.
        path: the file, for errors.

    Raises:
        UserError: the file does not hold what is wanted, or it is ambiguous. The message lists what the file holds.
    """
    if has_names(wanted.columns):
        for column in (column for side in wanted.columns for column in side):
            if column not in found.names:
                raise UserError(f"{path}: no column {column!r}; it has {listed(found.names)}")
        if not found.are_columns and any(len(side) > 1 for side in wanted.columns):
            raise UserError(
                f"{path}: columns are joined, but it has languages: {listed(found.names)}: type one per side"
            )
        return wanted.columns
    if wanted.columns != BY_DEFAULT:
        if not found.are_numbered:
            raise UserError(f"{path}: its columns have no numbers: {_what_to_type(found)}")
        return wanted.columns
    if sides := _by_language(found, wanted, path):
        return sides
    source, target = _declared(found)
    if source and target:
        return (source,), (target,)
    if found.are_numbered and len(_languages_in(found)) < 2:
        return BY_DEFAULT
    raise UserError(f"{path}: {_what_to_type(found)}")


def check_references(found: Languages, sides: tuple[Side, Side], references: Sequence[Side], path: str) -> None:
    """Check that a file has the columns of further references, and that they are other columns than the two sides.

    Raises:
        UserError: it does not; the message lists what the file has.
    """
    told = f"{path}: reference_columns={typed(references)}"
    if has_names(references) != has_names(sides):
        by_name = [column for side in sides for column in side if isinstance(column, str)]
        how = f"by name, {listed(by_name)}" if by_name else "by number"
        raise UserError(f"{told}: source and target are given {how}: give further references in the same way")
    if missing := [name for side in references for name in side if isinstance(name, str) and name not in found.names]:
        raise UserError(f"{told}: there is no {missing[0]!r}; it has {listed(found.names)}")
    if not found.are_columns and any(len(side) > 1 for side in references):
        raise UserError(f"{told}: languages are not joined: type one per reference")
    taken = [*sides]
    for side in references:
        if side in taken:
            raise UserError(f"{told}: {' and '.join(map(str, side))} is already the source, the target or a reference")
        taken.append(side)


def _by_language(found: Languages, wanted: Wanted, path: str) -> tuple[Side, Side] | None:
    """Return the sides whose languages the user gave; None if none was given, or no column is named like one."""
    given = (wanted.src_lang, wanted.tgt_lang)
    if given == (None, None):
        return None
    sides = [matching(found.names, code, path) if code else None for code in given]
    if sides == [None, None] and (found.are_columns or {found.source, found.target} == _UNKNOWN):
        return None  # the codes are those of sides with other names
    for i, key in enumerate(("src_lang", "tgt_lang")):
        unknown = [name for name in found.names if name in _UNKNOWN and name != sides[1 - i]]
        if given[i] and sides[i] is None:
            if len(unknown) != 1:
                raise UserError(f"data.{key}={given[i]}: {path} has {listed(found.names)}")
            sides[i] = unknown[0]
    for i in (0, 1):
        others = [name for name in _languages_in(found) if name != sides[1 - i]]
        if sides[i] is None and len(others) == 1:  # two languages, of which the other was given
            sides[i] = others[0]
    if sides[0] is None or sides[1] is None:
        raise UserError(f"{path}: {_what_to_type(found)}")
    if sides[0] == sides[1]:
        raise UserError(f"data.src_lang={given[0]} data.tgt_lang={given[1]}: both are {sides[0]} in {path}")
    return (sides[0],), (sides[1],)


def spelled(code: str) -> str:
    """Return a code in the spelling in which codes are compared."""
    return code.replace("_", "-").lower()


def matching(names: Sequence[str], code: str, path: str) -> str | None:
    """Return the name that is a code, or the only one of the same language; None if there is none.

    Raises:
        UserError: several variants of the language are there.
    """
    if same := [name for name in names if spelled(name) == spelled(code)]:
        return same[0]
    variants = [name for name in names if has_same_language(name, code)]
    if len(variants) > 1:
        raise UserError(f"{path}: {code} may be {' or '.join(map(printable, variants))}: type the one that you want")
    return variants[0] if variants else None


def _declared(found: Languages) -> tuple[str | None, str | None]:
    """Return the source and the target that a file declares."""
    source, target = found.source, found.target
    if found.are_columns:
        lower = {name.lower(): name for name in reversed(found.names)}
        source, target = (
            next((lower[name] for name in names if name in lower), None) for names in (_SOURCES, _TARGETS)
        )
    if source and not target and len(found.names) == 2:
        target = next((name for name in found.names if name != source), None)
    return source, target


def _languages_in(found: Languages) -> list[str]:
    """Return the names that are languages; other columns hold, for example, a number."""
    return [name for name in found.names if language_of_column(name)] if found.are_columns else found.names


def _what_to_type(found: Languages) -> str:
    languages = _languages_in(found)
    how = []
    if len(languages) > 1:
        how.append(f"data.src_lang={printable(languages[0])} data.tgt_lang={printable(languages[1])}")
    if found.are_columns and len(found.names) > 1:
        how.append(f"data.columns=[{printable(found.names[0])},{printable(found.names[1])}]")
    what = "columns" if found.are_columns else "languages"
    examples = f": type, for example, {' or '.join(how)}" if how else ""
    return f"which are source and target? It has the {what} {listed(found.names)}{examples}"


def listed(names: Sequence[str]) -> str:
    """Return names for a message."""
    shown = ", ".join(printable(name) for name in names[:_MOST_SHOWN])
    return shown + (", ..." if len(names) > _MOST_SHOWN else "") if names else "none"
