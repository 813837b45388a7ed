"""The choice of the two sides among the languages or columns of a file that holds both."""

from collections.abc import Sequence
from typing import NamedTuple

from diglot.data.language import has_same_language, language_of_column
from diglot.errors import UserError
from diglot.system.quoting import printable

Column = int | str  # number of a column, from 0, or its name
Side = tuple[Column, ...]  # columns of one side, or its language
DEFAULT_COLUMNS: tuple[Side, Side] = ((0,), (1,))
# Names of columns that name a side, in the order of preference.
_SOURCE_NAMES, _TARGET_NAMES = ("source", "src", "input"), ("target", "tgt", "output", "translation")
_GENERIC_NAMES = {"src", "tgt"}  # sides of a file that does not give its languages, see `pair_keys`
_MAX_SHOWN = 20


class Languages(NamedTuple):
    """The languages or named columns of a file.

    Attributes:
        names: languages or columns, as the file spells them, in its order.
        source: name of the declared source; None: the file declares none.
        target: name of the declared target; None: the file declares none.
        are_columns: whether `names` are names of columns, which need not be languages.
        are_numbered: whether columns can also be selected by number. The names are then the first row, which may be
            text.
        without_text: columns that cannot be a side, each with the reason, for errors.
    """

    names: list[str]
    source: str | None = None
    target: str | None = None
    are_columns: bool = False
    are_numbered: bool = False
    without_text: Sequence[str] = ()

    def listing(self) -> str:
        """Return the names as a list for a message, and separately the columns without text."""
        without_text = f", and without text {format_names(self.without_text)}" if self.without_text else ""
        return format_names(self.names) + without_text


class SideRequest(NamedTuple):
    """Columns or languages that the user asks for.

    Attributes:
        columns: value of data.columns.
        src_lang: value of data.src_lang; None: not given.
        tgt_lang: value of data.tgt_lang; None: not given.
        references: columns or language of each further reference.
    """

    columns: tuple[Side, Side] = DEFAULT_COLUMNS
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

    Args:
        key: config key of the columns, for errors.
        columns: the columns.

    Raises:
        UserError: a side is not a column or a list of columns, or the columns mix names and numbers.
    """
    sides = tuple((column,) if isinstance(column, (int, str)) else tuple(column) for column in columns)
    names = [column for side in sides for column in side]
    argument = f"{key}={typed(sides)}"
    if not all(sides) or not all(isinstance(column, (int, str)) for column in names):
        raise UserError(f"{argument}: a side is a column or a list of columns, as in [[lemma,features],form]")
    if len({isinstance(column, str) for column in names}) > 1:
        raise UserError(f"{argument}: must be numbers only, or names only")
    if any(isinstance(column, int) and column < 0 for column in names):
        raise UserError(f"{argument}: column numbers must be at least 0")
    return sides


def choose_sides(languages: Languages, request: SideRequest, path: str) -> tuple[Side, Side]:
    """Return the source and the target side of a file.

    Columns of the request take precedence over languages of the request, and these over the declaration of the file.
    If none of them decides, the error asks the user.

    Args:
        languages: languages or columns of the file.
        request: columns or languages that the user asks for.
        path: name of the file in errors.

    Raises:
        UserError: the file lacks what is requested, or the request is ambiguous. The message lists the languages or
            columns of the file.
    """
    if has_names(request.columns):
        for column in (column for side in request.columns for column in side):
            if column not in languages.names:
                raise UserError(f"{path}: no column {column!r}; it has {languages.listing()}")
        if not languages.are_columns and any(len(side) > 1 for side in request.columns):
            raise UserError(f"{path}: languages cannot be joined; it has {languages.listing()}: type one per side")
        return request.columns
    if request.columns != DEFAULT_COLUMNS:
        if not languages.are_numbered:
            raise UserError(f"{path}: its columns have no numbers: {_ask_for_sides(languages)}")
        return request.columns
    if sides := _sides_of_codes(languages, request, path):
        return sides
    source, target = _declared_sides(languages)
    if source and target:
        return (source,), (target,)
    if languages.are_numbered and len(_language_names(languages)) < 2:
        return DEFAULT_COLUMNS
    raise UserError(f"{path}: {_ask_for_sides(languages)}")


def check_references(languages: Languages, sides: tuple[Side, Side], references: Sequence[Side], path: str) -> None:
    """Check that a file has the columns of further references, and that they differ from the two sides.

    Args:
        languages: languages or columns of the file.
        sides: source and target side of the file.
        references: columns or language of each further reference.
        path: name of the file in errors.

    Raises:
        UserError: the file lacks a column, or a reference is the same as another side. The message lists the languages
            or columns of the file.
    """
    argument = f"{path}: reference_columns={typed(references)}"
    if has_names(references) != has_names(sides):
        names = [column for side in sides for column in side if isinstance(column, str)]
        form = f"by name, {format_names(names)}" if names else "by number"
        raise UserError(f"{argument}: source and target are given {form}: give further references in the same way")
    requested = [column for side in references for column in side if isinstance(column, str)]
    if missing := [name for name in requested if name not in languages.names]:
        raise UserError(f"{argument}: there is no {missing[0]!r}; it has {languages.listing()}")
    if not languages.are_columns and any(len(side) > 1 for side in references):
        raise UserError(f"{argument}: languages cannot be joined: type one per reference")
    used = [*sides]
    for side in references:
        if side in used:
            name = " and ".join(map(str, side))
            raise UserError(f"{argument}: {name} is already the source, the target or a reference")
        used.append(side)


def _sides_of_codes(languages: Languages, request: SideRequest, path: str) -> tuple[Side, Side] | None:
    """Return the sides of the requested languages; None if none is requested, or no column is named after one."""
    codes = (request.src_lang, request.tgt_lang)
    if codes == (None, None):
        return None
    sides = [find_language(languages.names, code, path) if code else None for code in codes]
    if sides == [None, None] and (languages.are_columns or {languages.source, languages.target} == _GENERIC_NAMES):
        return None  # the codes are languages of sides that have other names in the file
    for i, key in enumerate(("src_lang", "tgt_lang")):
        generic = [name for name in languages.names if name in _GENERIC_NAMES and name != sides[1 - i]]
        if codes[i] and sides[i] is None:
            if len(generic) != 1:
                raise UserError(f"data.{key}={codes[i]}: {path} has {languages.listing()}")
            sides[i] = generic[0]
    for i in (0, 1):
        others = [name for name in _language_names(languages) if name != sides[1 - i]]
        if sides[i] is None and len(others) == 1:  # only the other one of two languages is requested
            sides[i] = others[0]
    if sides[0] is None or sides[1] is None:
        raise UserError(f"{path}: {_ask_for_sides(languages)}")
    if sides[0] == sides[1]:
        raise UserError(f"data.src_lang={codes[0]} data.tgt_lang={codes[1]}: both are {sides[0]} in {path}")
    return (sides[0],), (sides[1],)


def normalise_code(code: str) -> str:
    """Return a language code in a uniform spelling, for comparisons: lower case with hyphens."""
    return code.replace("_", "-").lower()


def find_language(names: Sequence[str], code: str, path: str) -> str | None:
    """Return the name that equals a code, or else the only name of the same language; None if there is none.

    Raises:
        UserError: several names are variants of the language.
    """
    if equal := [name for name in names if normalise_code(name) == normalise_code(code)]:
        return equal[0]
    variants = [name for name in names if has_same_language(name, code)]
    if len(variants) > 1:
        raise UserError(f"{path}: {code} may be {' or '.join(map(printable, variants))}: type the one that you want")
    return variants[0] if variants else None


def _declared_sides(languages: Languages) -> tuple[str | None, str | None]:
    """Return the source and the target that a file declares, by its format or by the names of its columns."""
    source, target = languages.source, languages.target
    if languages.are_columns:
        by_lower_case = {name.lower(): name for name in reversed(languages.names)}
        source, target = (
            next((by_lower_case[name] for name in names if name in by_lower_case), None)
            for names in (_SOURCE_NAMES, _TARGET_NAMES)
        )
    if source and not target and len(languages.names) == 2:
        target = next((name for name in languages.names if name != source), None)
    return source, target


def _language_names(languages: Languages) -> list[str]:
    """Return the names that are language codes. Other columns may hold, for example, a number."""
    return [name for name in languages.names if language_of_column(name)] if languages.are_columns else languages.names


def _ask_for_sides(languages: Languages) -> str:
    """Return the question which sides to take, with examples of what to type, or that there is only one."""
    kind = "columns" if languages.are_columns else "languages"
    if len(languages.names) == 1:
        return f"two {kind} are needed, but it has only {languages.listing()}"
    names = _language_names(languages)
    arguments = []
    if len(names) > 1:
        arguments.append(f"data.src_lang={printable(names[0])} data.tgt_lang={printable(names[1])}")
    if languages.are_columns and len(languages.names) > 1:
        arguments.append(f"data.columns=[{printable(languages.names[0])},{printable(languages.names[1])}]")
    examples = f": type, for example, {' or '.join(arguments)}" if arguments else ""
    return f"which are source and target? It has the {kind} {languages.listing()}{examples}"


def format_names(names: Sequence[str]) -> str:
    """Return names as a list for a message, at most twenty."""
    shown = ", ".join(printable(name) for name in names[:_MAX_SHOWN])
    return shown + (", ..." if len(names) > _MAX_SHOWN else "") if names else "none"
