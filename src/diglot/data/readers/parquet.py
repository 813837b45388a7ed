"""Reading of Parquet files with a column per language, or with a struct column "translation" of languages."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

from diglot.data.readers.formats import SAMPLE, Format, Pair, given
from diglot.data.readers.opening import open_file
from diglot.data.readers.sides import Languages, Side
from diglot.data.readers.units import one_line
from diglot.errors import UserError

if TYPE_CHECKING:
    from pyarrow import ChunkedArray, Schema
    from pyarrow.parquet import ParquetFile

_TRANSLATION = "translation"  # the column of languages in datasets of the Hugging Face Hub


class Parquet(Format):
    """Parquet files, of which at most a row group is in memory."""

    name = "Parquet"

    def detects(self, head: bytes) -> bool:
        return head.startswith(b"PAR1")

    def languages(self, path: str) -> Languages:
        with _open_parquet(path) as file:
            return Languages(list(_columns(file.schema_arrow)), are_columns=True)

    def pairs(self, path: str, sides: Sequence[Side], exact: Collection[str] = ()) -> Iterator[Pair]:
        with _open_parquet(path) as file:
            columns = _columns(file.schema_arrow)
            for column in chain.from_iterable(sides):
                if str(column) not in columns:
                    raise UserError(f"{path}: no column {column!r}; it has {', '.join(columns)}")
            field_paths = [[columns[str(column)] for column in side] for side in sides]
            names = [".".join(field_path) for field_path in chain.from_iterable(field_paths)]
            n_rows = 0
            for batch in file.iter_batches(SAMPLE, columns=names):
                try:
                    src, tgt, *more = [
                        _join_columns([_column_texts(batch.column(root), subfields) for root, *subfields in side])
                        for side in field_paths
                    ]
                except UnicodeDecodeError:
                    raise UserError(f"{path}, rows {n_rows + 1} to {n_rows + batch.num_rows}: not UTF-8") from None
                n_rows += batch.num_rows
                yield from zip(src, tgt, *(map(given, lines) for lines in more), strict=True)


@contextmanager
def _open_parquet(path: str) -> "Iterator[ParquetFile]":
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    with open_file(path, as_utf8=False) as file:
        try:
            yield ParquetFile(file)
        except pa.ArrowException as error:
            raise UserError(f"{path}: the Parquet file is damaged ({' '.join(str(error).split())})") from None


def _columns(schema: "Schema") -> dict[str, list[str]]:
    """Return the path of each column with text, by its name.

    The path is [column], or ["translation", language] for a language in the struct column.
    """
    import pyarrow as pa

    def is_text(type_: Any) -> bool:
        type_ = type_.value_type if pa.types.is_dictionary(type_) else type_
        return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_null(type_))

    field_paths = {field.name: [field.name] for field in schema if is_text(field.type)}
    for field in schema:
        if field.name == _TRANSLATION and pa.types.is_struct(field.type):
            field_paths |= {
                subfield.name: [field.name, subfield.name] for subfield in field.type if is_text(subfield.type)
            }
    return field_paths


def _column_texts(column: "ChunkedArray", subfields: list[str]) -> list[str | None]:
    """Return the texts of a column, or those of a field of a struct column."""
    import pyarrow.compute as pc

    texts: list[str | None] = (pc.struct_field(column, subfields) if subfields else column).to_pylist()
    return texts


def _join_columns(columns: list[list[str | None]]) -> list[str]:
    """Return one side of each row, in which null is blank. Several columns are joined by a space."""
    if len(columns) == 1:
        return [one_line(text or "") for text in columns[0]]
    return [one_line(" ".join(filter(None, row))) for row in zip(*columns)]
