"""Rows as InfluxDB's line protocol, made by Spark's own expressions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from headrace.core.errors import ProjectError
from headrace.core.lazy import lazy_modules
from headrace.sinks._chunks import chunks, halves
from headrace.sinks._http import refusal
from headrace.sinks._refused import Report
from headrace.systems.http.client import HttpClient, HttpReply, gzipped

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql import functions as F
else:
    F = lazy_modules("pyspark.sql.functions")

TAG_PREFIXES = ("tag_", "label_")
MOST_BYTES = 8 << 20
_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_FLOATS = ("float", "double")
_NESTED = ("array", "map", "struct", "binary", "variant")
_LATE = re.compile(r"points beyond retention policy dropped=(\d+)")


@dataclass(frozen=True)
class LineShape:
    """Which columns are what."""

    measurement: str
    time: str
    tags: Mapping[str, str]
    """Column to the name of its tag."""
    fields: tuple[str, ...]

    @staticmethod
    def of(columns: list[str], measurement: str, time: str, more_tags: list[str]) -> LineShape:
        """By their names: a prefix makes a tag, all but tags and the time are fields."""
        tags = {name: name for name in more_tags}
        for name in columns:
            prefix = next((one for one in TAG_PREFIXES if name.startswith(one) and name != one), None)
            if prefix is not None and name != time and name not in tags:
                tags[name] = name.removeprefix(prefix)
        return LineShape(measurement, time, tags, tuple(name for name in columns if name != time and name not in tags))


def cannot_hold(kind: str) -> bool:
    """Whether a Spark type has no place in a field or a tag."""
    return kind.startswith(_NESTED)


def as_lines(rows: DataFrame, shape: LineShape) -> DataFrame:
    """`line`, null where a row has no field; `problem`, and then the `row` as JSON, where it cannot be a point."""
    kinds = dict(rows.dtypes)
    tags = [_tag(column, name) for column, name in sorted(shape.tags.items(), key=lambda pair: pair[1])]
    fields = F.concat_ws(",", *(_field(name, kinds[name]) for name in shape.fields))
    time = F.unix_micros(F.col(f"`{shape.time}`").cast("timestamp")).cast("string")
    head = F.concat(F.lit(_escaped(shape.measurement, ", ")), F.concat_ws("", *tags))
    line = F.when(fields != "", F.concat(head, F.lit(" "), fields, F.lit(" "), time))
    problem = _problem(shape)
    row = F.to_json(F.struct(*(F.col(f"`{name}`") for name in rows.columns)))
    return rows.select(
        F.when(problem.isNull(), line).alias("line"), problem.alias("problem"), F.when(problem.isNotNull(), row)
    ).toDF("line", "problem", "row")


def _problem(shape: LineShape) -> Column:
    """Why a row cannot be a point: line protocol has no way to write such a tag."""
    found = F.when(F.col(f"`{shape.time}`").isNull(), F.lit(f"{shape.time} is null"))
    for column, name in shape.tags.items():
        text = F.col(f"`{column}`").cast("string")
        found = found.when(text.rlike(r"[\n\r]|\\$"), F.lit(f"tag {name} has a line break or ends with a backslash"))
    return found


def _tag(column: str, name: str) -> Column:
    text = F.col(f"`{column}`").cast("string")
    return F.when(text != "", F.concat(F.lit(f",{_escaped(name)}="), F.regexp_replace(text, "([,= ])", r"\\$1")))


def _field(column: str, kind: str) -> Column:
    value = F.col(f"`{column}`")
    text = value.cast("string")
    if kind in _INTEGERS:
        text = F.concat(text, F.lit("i"))
    elif kind in _FLOATS:
        # there is no way to write these, as there is none for null
        text = F.when(~F.isnan(value) & (F.abs(value) != float("inf")), text)
    elif kind != "boolean" and not kind.startswith("decimal"):
        text = F.concat(F.lit('"'), F.regexp_replace(text, r'(["\\])', r"\\$1"), F.lit('"'))
    return F.concat(F.lit(f"{_escaped(column)}="), text)


def _escaped(name: str, special: str = ",= ") -> str:
    return re.sub(f"([{special}])", r"\\\1", name)


@dataclass(frozen=True)
class InfluxWrite:
    """Writes the points of one task; called by Spark with Arrow batches of `as_lines`. Pickled to the workers."""

    client: HttpClient
    path: str
    batch_size: int
    gzip: bool
    report: Report

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            lines = self._lines(batches)
            for portion in chunks(lines, lambda one: len(one[1]) + 1, self.batch_size, MOST_BYTES):
                self._write(portion)
        finally:
            summary = list(self.report.batches())
        yield from summary

    def _lines(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
        first = 0
        for batch in batches:
            lines = batch.column("line").cast(pa.binary()).to_pylist()
            problems, rows = batch.column("problem"), batch.column("row")
            for number, line in enumerate(lines):
                if line is not None:
                    yield first + number, line
                elif problems[number].is_valid:
                    reason = str(problems[number].as_py())
                    self.report.refused(first + number, "not-a-point", reason, str(rows[number].as_py()).encode())
                else:
                    self.report.counts["empty"] += 1
            first += len(lines)

    def _write(self, portion: list[tuple[int, bytes]]) -> None:
        """Idempotent: measurement, tags and time identify a point."""
        body = b"\n".join(line for _, line in portion)
        body, headers = gzipped(body) if self.gzip else (body, {})
        answer = self.client.send("POST", self.path, body, headers)
        late = _LATE.search(answer.text)
        if answer.ok:
            self.report.written(len(portion), len(body))
        elif late is not None:
            self.report.counts["late"] += int(late[1])
            self.report.written(len(portion) - int(late[1]), len(body))
        elif answer.status not in (400, 413):
            raise _unexpected(self.client.label, answer)
        elif len(portion) == 1:
            number, line = portion[0]
            self.report.refused(number, "refused", _error_text(answer), line)
        else:
            for half in halves(portion):
                self._write(list(half))


def _unexpected(label: str, answer: HttpReply) -> ProjectError:
    if answer.status != 404:
        return refusal(label, answer)
    return ProjectError(
        "sink-missing",
        f"{label}: {_error_text(answer)}",
        hint="make the database, or write `create: true`; check the retention policy",
    )


def _error_text(answer: HttpReply) -> str:
    try:
        return str(msgspec.json.decode(answer.body)["error"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return answer.text
