"""`type: csv`: comma-separated values, one line per record."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from pydantic import Field

from headrace.core.context import Context
from headrace.core.errors import ProjectError, did_you_mean
from headrace.core.format import Bad, Decoded, Decoder, Encoder, Format
from headrace.core.schema import from_ddl
from headrace.formats._arrays import batch_of
from headrace.formats._batches import rows_around_bad
from headrace.formats.csv.values import check_plain, from_texts, to_texts

_LINE_END = "\r\n"  # never part of a record, but values with it are quoted


class CsvFormat(Format):
    """One line of separated values per record, in UTF-8; columns are identified by their place.

    Quotes inside a quoted value are doubled; a quoted value may hold line ends. Timestamps are ISO-8601, UTC where they
    name no zone; binary is base64. A value equal to `null_value` is null, so a text equal to it cannot be written.

    Order: kept. Bad records: `malformed` (wrong number of values, encoding, quotes), `wrong-type`, `empty`, `header`.
    """

    type: Literal["csv"] = "csv"
    columns: str = Field(
        description="Names and types of all columns, in their order.",
        examples=["id bigint, at timestamp"],
        min_length=1,
    )
    delimiter: str = Field(
        ",", description="The separator between two values.", min_length=1, max_length=1, examples=[";", "\t"]
    )
    quote: str = Field(
        '"', description="The quote around a value that contains a delimiter.", min_length=1, max_length=1
    )
    null_value: str = Field("", description="The text that means null.", examples=["NULL"])
    header: bool = Field(
        False,
        description="Treat records that repeat the column names, as the first line of a file does, as bad records.",
    )

    def record_schema(self, context: Context) -> pa.Schema:
        """The columns as given."""
        schema = from_ddl(self.columns)
        check_plain(schema)
        return schema

    def decoder(self, context: Context, schema: pa.Schema) -> Decoder:
        """A decoder of these columns; all values of a line are counted, only the requested ones are converted."""
        names = self.record_schema(context).names
        for name in schema.names:
            if name not in names:
                hint = did_you_mean(name, names, "columns")
                raise ProjectError("unknown-column", f"format 'csv' has no column '{name}'", hint=hint)
        return _CsvDecoder(self, names, schema)

    def encoder(self, context: Context, schema: pa.Schema) -> Encoder:
        """An encoder of exactly the given columns, in the order of `columns`."""
        names = self.record_schema(context).names
        for name in schema.names:
            if name not in names:
                hint = did_you_mean(name, names, "columns")
                raise ProjectError("unknown-column", f"format 'csv' has no column '{name}'", hint=hint)
        missing = [name for name in names if name not in schema.names]
        if missing:
            hint = f"add it to the SQL; columns: {', '.join(schema.names)}"
            raise ProjectError("missing-column", f"format 'csv' needs a column '{missing[0]}'", hint=hint)
        check_plain(schema)
        return _CsvEncoder(self, names)

    def dialect(self) -> dict[str, Any]:
        """The dialect for Python's csv module."""
        return {"delimiter": self.delimiter, "quotechar": self.quote, "strict": True, "lineterminator": _LINE_END}


class _CsvDecoder(Decoder):
    def __init__(self, options: CsvFormat, names: Sequence[str], schema: pa.Schema) -> None:
        self.schema = schema
        self._options = options
        self._names = list(names)

    def decode(self, values: pa.Array) -> Decoded:
        """All lines at once when no value contains a line end, else line by line."""
        table = self._table(values)
        if table is not None:
            try:
                columns = [from_texts(table.column(field.name).combine_chunks(), field.type) for field in self.schema]
                return Decoded(batch_of(columns, self.schema, len(values)))
            except (pa.ArrowInvalid, ValueError):  # a value does not fit its column: find the record
                pass
        return self._decode_one_by_one(values)

    def _table(self, values: pa.Array) -> pa.Table | None:
        options = self._options
        unsafe = f"[\r\n{_escaped(options.quote)}]"
        lines = values.cast(pa.binary())
        if not len(lines) or lines.null_count or options.header or not (options.delimiter + options.quote).isascii():
            return None
        if pc.any(pc.or_(pc.match_substring_regex(lines, unsafe), pc.equal(pc.binary_length(lines), 0))).as_py():
            return None
        text = pc.binary_join(pa.ListArray.from_arrays([0, len(lines)], lines), b"\n")[0].as_buffer()
        parse = pa_csv.ParseOptions(delimiter=options.delimiter, quote_char=False, double_quote=False)
        read = pa_csv.ReadOptions(column_names=self._names, use_threads=False, block_size=max(len(text) + 1, 1024))
        convert = pa_csv.ConvertOptions(
            column_types=dict.fromkeys(self._names, pa.string()),
            null_values=[options.null_value],
            strings_can_be_null=True,
            include_columns=self.schema.names or self._names[:1],
        )
        try:
            table = pa_csv.read_csv(pa.BufferReader(text), read, parse, convert)
        except pa.ArrowInvalid:  # a line with too few or too many values
            return None
        return table if table.num_rows == len(values) else None

    def _decode_one_by_one(self, values: pa.Array) -> Decoded:
        lines: list[list[str]] = []
        positions: list[int] = []
        bad: list[Bad] = []
        for index, value in enumerate(values.to_pylist()):
            fields = self._fields(value)
            if isinstance(fields, list):
                lines.append(fields)
                positions.append(index)
            else:
                bad.append(Bad(index, *fields))
        return rows_around_bad(lines, self._rows, positions, bad)

    def _fields(self, value: bytes | None) -> list[str] | tuple[str, str]:
        if not value:
            return "empty", "the record has no value"
        try:
            lines = list(csv.reader(io.StringIO(value.decode(), newline=""), **self._options.dialect()))
        except (csv.Error, UnicodeDecodeError) as error:
            return "malformed", str(error)
        if len(lines) != 1:
            return "malformed", f"{len(lines)} lines where one was expected"
        if len(lines[0]) != len(self._names):
            return "malformed", f"{len(lines[0])} values where {len(self._names)} were expected"
        if self._options.header and lines[0] == self._names:
            return "header", "the record repeats the column names"
        return lines[0]

    def _rows(self, lines: Sequence[Sequence[str]]) -> pa.RecordBatch:
        columns = []
        for field in self.schema:
            place, null = self._names.index(field.name), self._options.null_value
            texts = pa.array([None if line[place] == null else line[place] for line in lines], pa.string())
            try:
                columns.append(from_texts(texts, field.type))
            except (pa.ArrowInvalid, ValueError) as error:
                raise ValueError(f"column '{field.name}': {str(error).split(': expected')[0]}") from error
        return batch_of(columns, self.schema, len(lines))


class _CsvEncoder(Encoder):
    def __init__(self, options: CsvFormat, names: Sequence[str]) -> None:
        self._options = options
        self._names = list(names)

    def encode(self, rows: pa.RecordBatch) -> pa.Array:
        """One line per row, without a line end."""
        columns = [
            pc.fill_null(to_texts(rows.column(name)), self._options.null_value).to_pylist() for name in self._names
        ]
        lines = []
        for row in zip(*columns, strict=True):
            line = io.StringIO(newline="")
            csv.writer(line, **self._options.dialect()).writerow(row)
            lines.append(line.getvalue().removesuffix(_LINE_END).encode())
        return pa.array(lines, pa.binary())


def _escaped(character: str) -> str:
    return "\\" + character if character in "\\]^-[" else character
