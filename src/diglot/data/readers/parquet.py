"""Reading of Parquet files with a column per language, or with a column "translation" of languages."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from diglot.data.readers.formats import SAMPLE, Format, Pair
from diglot.data.readers.opening import opened
from diglot.data.readers.sides import Languages, Side, listed
from diglot.data.readers.units import one_line
from diglot.errors import UserError
from diglot.system.quoting import printable

if TYPE_CHECKING:
    from pyarrow import ChunkedArray, DataType, Schema
    from pyarrow.parquet import ParquetFile

_TRANSLATION = "translation"  # the column of languages in the Hub's form


class Parquet(Format):
    """A Parquet file, of which a part of a row group is in memory."""

    name = "Parquet"

    def detects(self, head: bytes) -> bool:
        return head.startswith(b"PAR1")

    def languages(self, path: str) -> Languages:
        with _table(path) as table:
            return _languages(table.schema_arrow, path)

    def pairs(self, path: str, src: Side, tgt: Side, exact: Collection[str] = ()) -> Iterator[Pair]:
        with _table(path) as table:
            columns = _columns(table.schema_arrow)
            for column in (*src, *tgt):
                if str(column) not in columns:
                    raise UserError(f"{path}: no column {column!r}; it has {', '.join(columns)}")
            places = [columns[str(column)] for column in (*src, *tgt)]
            n_rows = 0
            for batch in table.iter_batches(SAMPLE, columns=[".".join(place) for place in places]):
                try:
                    sides = [_texts(batch.column(place[0]), place[1:]) for place in places]
                except UnicodeDecodeError:
                    raise UserError(f"{path}, rows {n_rows + 1} to {n_rows + batch.num_rows}: not UTF-8") from None
                n_rows += batch.num_rows
                yield from zip(_joined(sides[: len(src)]), _joined(sides[len(src) :]), strict=True)


@contextmanager
def _table(path: str) -> "Iterator[ParquetFile]":
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    with opened(path, as_utf8=False) as file:
        try:
            yield ParquetFile(file)
        except pa.ArrowException as error:
            raise UserError(f"{path}: the Parquet file is damaged ({' '.join(str(error).split())})") from None


def is_text(type_: "DataType") -> bool:
    """Return whether a type of a column is text, or has only nulls."""
    import pyarrow.types as pat

    type_ = type_.value_type if pat.is_dictionary(type_) else type_
    return any(is_one(type_) for is_one in (pat.is_string, pat.is_large_string, pat.is_string_view, pat.is_null))


def _languages(schema: "Schema", path: str) -> Languages:
    """Return the columns with text, and for errors those without.

    Raises:
        UserError: no column has text, or two have the same name.
    """
    if doubled := sorted(name for name in set(schema.names) if schema.names.count(name) > 1):
        raise UserError(f"{path}: several columns have the name {printable(doubled[0])}")
    columns = _columns(schema)
    used = {place[0] for place in columns.values()}
    others = [f"{field.name} ({field.type})" for field in schema if field.name not in used]
    if not columns:
        raise UserError(f"{path}: no column has text; it has {listed(others)}")
    return Languages(list(columns), are_columns=True, others=others)


def _columns(schema: "Schema") -> dict[str, list[str]]:
    """Return the place of each column with text; a language is a column of its own, or in the column of languages."""
    import pyarrow as pa

    places = {field.name: [field.name] for field in schema if is_text(field.type)}
    for field in schema:
        if field.name == _TRANSLATION and pa.types.is_struct(field.type):
            places |= {inner.name: [field.name, inner.name] for inner in field.type if is_text(inner.type)}
    return places


def _texts(column: "ChunkedArray", inside: list[str]) -> list[str | None]:
    import pyarrow.compute as pc

    texts: list[str | None] = (pc.struct_field(column, inside) if inside else column).to_pylist()
    return texts


def _joined(columns: list[list[str | None]]) -> list[str]:
    """Return one side of some rows; null is blank."""
    if len(columns) == 1:
        return [one_line(text or "") for text in columns[0]]
    return [one_line(" ".join(filter(None, row))) for row in zip(*columns)]
