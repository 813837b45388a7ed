"""Reading of Parquet files with a column per language, or with a column "translation" of languages."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

from diglot.data.readers.formats import SAMPLE, Format, Pair, given
from diglot.data.readers.opening import opened
from diglot.data.readers.sides import Languages, Side
from diglot.data.readers.units import one_line
from diglot.errors import UserError

if TYPE_CHECKING:
    from pyarrow import ChunkedArray, Schema
    from pyarrow.parquet import ParquetFile

_TRANSLATION = "translation"  # the column of languages in the Hub's form


class Parquet(Format):
    """A Parquet file, of which a part of a row group is in memory."""

    name = "Parquet"

    def detects(self, head: bytes) -> bool:
        return head.startswith(b"PAR1")

    def languages(self, path: str) -> Languages:
        with _table(path) as table:
            return Languages(list(_columns(table.schema_arrow)), are_columns=True)

    def pairs(self, path: str, sides: Sequence[Side], exact: Collection[str] = ()) -> Iterator[Pair]:
        with _table(path) as table:
            columns = _columns(table.schema_arrow)
            for column in chain.from_iterable(sides):
                if str(column) not in columns:
                    raise UserError(f"{path}: no column {column!r}; it has {', '.join(columns)}")
            places = [[columns[str(column)] for column in side] for side in sides]
            names = [".".join(place) for place in chain.from_iterable(places)]
            n_rows = 0
            for batch in table.iter_batches(SAMPLE, columns=names):
                try:
                    src, tgt, *more = [
                        _joined([_texts(batch.column(place[0]), place[1:]) for place in side]) for side in places
                    ]
                except UnicodeDecodeError:
                    raise UserError(f"{path}, rows {n_rows + 1} to {n_rows + batch.num_rows}: not UTF-8") from None
                n_rows += batch.num_rows
                yield from zip(src, tgt, *(map(given, lines) for lines in more), strict=True)


@contextmanager
def _table(path: str) -> "Iterator[ParquetFile]":
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    with opened(path, as_utf8=False) as file:
        try:
            yield ParquetFile(file)
        except pa.ArrowException as error:
            raise UserError(f"{path}: the Parquet file is damaged ({' '.join(str(error).split())})") from None


def _columns(schema: "Schema") -> dict[str, list[str]]:
    """Return the place of each column with text; a language is a column of its own, or in the column of languages."""
    import pyarrow as pa

    def is_text(type_: Any) -> bool:
        type_ = type_.value_type if pa.types.is_dictionary(type_) else type_
        return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_null(type_))

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
