"""Tasks that stage the changes of an endpoint, which the driver then commits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.encoding.json_values import as_text
from headrace.core.endpoints import OLD, OP, Conflicts, Op
from headrace.core.schema import to_ddl
from headrace.log.log import BatchStaging, SegmentPart
from headrace.sinks._refused import Report, task_number
from headrace.sinks.endpoint.net_changes import net_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_STAGED_SCHEMA = pa.schema(
    [
        ("task", pa.int32()),
        ("number", pa.int32()),
        ("name", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("digest", pa.string()),
        ("refused", pa.int64()),
    ]
)
STAGED = to_ddl(_STAGED_SCHEMA)
OPERATION, DELETED = "__operation", "__deleted"
"""Columns next to those of the row: its operation as a text, or whether it is deleted."""
_OPS = {op.name.lower(): int(op) for op in Op}


@dataclass
class StageStep:
    """Stages the changes of one task; called by Spark with Arrow batches. Pickled to the workers."""

    staging: BatchStaging
    schema: pa.Schema
    """Of the changes."""
    report: Report
    key: tuple[str, ...]
    conflicts: Conflicts | None = None
    """How changes of one key are put together; None: there is one of each."""
    seen: int = 0

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        changes: Iterator[pa.RecordBatch] = map(self._changes, self._fit(batches))
        if self.conflicts is not None:
            changes = net_batches(changes, self.key, self.conflicts)
        parts = self.staging.stage(task_number(), changes)
        if self.report.letters is not None:
            self.report.letters.flush()
        yield from _report(task_number(), parts, self.report.counts["refused"])

    def _fit(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows that can be changes; the others are refused."""
        for batch in batches:
            fit = pa.repeat(pa.scalar(True), batch.num_rows)
            for name in self.key:
                fit = pc.and_(fit, batch.column(name).is_valid())
            if OPERATION in batch.schema.names:
                fit = pc.and_(fit, pc.is_in(batch.column(OPERATION), pa.array(list(_OPS))))
            if fit.false_count:
                self._refuse(batch, fit.to_pylist())
            self.seen += batch.num_rows
            yield batch.filter(fit) if fit.false_count else batch

    def _refuse(self, batch: pa.RecordBatch, fit: Sequence[bool]) -> None:
        for number in (number for number, fits in enumerate(fit) if not fits):
            row = batch.slice(number, 1).to_pylist()[0]
            missing = [name for name in self.key if row[name] is None]
            operation = row.pop(OPERATION, row.pop(OP, None))
            if missing:
                reason, detail = "no-key", f"column '{missing[0]}' of the key is null"
            else:
                reason, detail = "bad-operation", f"'{operation}' is none of {', '.join(sorted(_OPS))}"
            self.report.refused(self.seen + number, reason, detail, as_text(row).encode())

    def _changes(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        schema = self.schema
        given: dict[str, pa.Array] = {name: rows.column(name) for name in schema.names if name not in (OP, OLD)}
        given[OP] = _ops(rows, Op.UPSERT if self.key else Op.INSERT)
        if OLD in schema.names:
            given[OLD] = pa.nulls(rows.num_rows, schema.field(OLD).type)
        return pa.RecordBatch.from_arrays([given[name] for name in schema.names], names=schema.names)


def staged(step: StageStep, changes: DataFrame | pa.Table) -> Sequence[Mapping[str, Any]]:
    """The staged parts in order, written by tasks or by the driver."""
    if isinstance(changes, pa.Table):
        return [row for batch in step(iter(changes.to_batches())) for row in batch.to_pylist()]
    return [row.asDict() for row in sorted(changes.mapInArrow(step, STAGED).collect())]


def _ops(rows: pa.RecordBatch, plain: Op) -> pa.Array:
    if OP in rows.schema.names:
        return rows.column(OP)
    if OPERATION in rows.schema.names:
        return pa.array([_OPS[text] for text in rows.column(OPERATION).to_pylist()], pa.int8())
    if DELETED in rows.schema.names:
        gone = pc.fill_null(rows.column(DELETED), False)
        return pc.if_else(gone, pa.scalar(int(Op.DELETE), pa.int8()), pa.scalar(int(plain), pa.int8()))
    return pa.repeat(pa.scalar(int(plain), pa.int8()), rows.num_rows)


def _report(task: int, parts: Sequence[SegmentPart], refused: int) -> Iterator[pa.RecordBatch]:
    """The report of a task to the driver: its parts in order, and how many rows were refused."""
    rows = [(task, number, *astuple(part), 0) for number, part in enumerate(parts)]
    rows += [(task, -1, "", 0, 0, "", refused)] if refused else []
    if rows:
        columns = [
            pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), _STAGED_SCHEMA, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=_STAGED_SCHEMA)
