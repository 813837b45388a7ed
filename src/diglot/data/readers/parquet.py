"""Reading of Parquet files with a column per language, or with a struct column "translation" of languages."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING

from diglot.data.readers.formats import SAMPLE, Format, Pair, given
from diglot.data.readers.opening import open_file
from diglot.data.readers.sides import Languages, Side, format_names
from diglot.data.readers.units import one_line
from diglot.errors import UserError
from diglot.system.quoting import printable

if TYPE_CHECKING:
    from pyarrow import ChunkedArray, DataType, Schema
    from pyarrow.parquet import ParquetFile

_TRANSLATION = "translation"  # the column of languages in datasets of the Hugging Face Hub


class Parquet(Format):
    """Parquet files, of which at most a row group is in memory."""

    name = "Parquet"

    def detects(self, head: bytes) -> bool:
        return head.startswith(b"PAR1")

    def languages(self, path: str) -> Languages:
        with _open_parquet(path) as file:
            return _languages(file.schema_arrow, path)

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


def is_text(type_: "DataType") -> bool:
    """Return whether a type of a column is text, or has only nulls."""
    import pyarrow.types as pat

    type_ = type_.value_type if pat.is_dictionary(type_) else type_
    return any(is_type(type_) for is_type in (pat.is_string, pat.is_large_string, pat.is_string_view, pat.is_null))


def _languages(schema: "Schema", path: str) -> Languages:
    """Return the columns with text, and for errors those without.

    Raises:
        UserError: no column has text, or two have the same name.
    """
    if duplicates := sorted(name for name in set(schema.names) if schema.names.count(name) > 1):
        raise UserError(f"{path}: several columns have the name {printable(duplicates[0])}")
    field_paths = _columns(schema)
    used = {field_path[0] for field_path in field_paths.values()}
    without_text = [f"{field.name} ({field.type})" for field in schema if field.name not in used]
    if not field_paths:
        raise UserError(f"{path}: no column has text; it has {format_names(without_text)}")
    return Languages(list(field_paths), are_columns=True, without_text=without_text)


def _columns(schema: "Schema") -> dict[str, list[str]]:
    """Return the path of each column with text, by its name.

    The path is [column], or ["translation", language] for a language in the struct column.
    """
    import pyarrow as pa

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
