"""What tests of steps share: a project to be bound to, and a way to run a step on some rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.core.context import Context
from headrace.core.errors import unknown_flow
from headrace.core.processor import FlowLakeTable, Processor, StepContext
from headrace.core.schema import from_ddl
from headrace.engine.inputs.processing import StepDeadLetters
from headrace.engine.letters.dead_letters import DeadLetterWriter, read_dead_letters


@dataclass(frozen=True)
class Around:
    """A project, as far as a step may ask about it."""

    root: Path
    tables: Mapping[str, FlowLakeTable] = field(default_factory=dict)
    mode: str = "micro_batch"

    @property
    def context(self) -> Context:
        return Context(self.root, str(self.root / ".headrace"))

    def lake_table(self, flow: str) -> FlowLakeTable:
        if flow not in self.tables:
            raise unknown_flow(flow, self.tables)
        return self.tables[flow]

    def written_out(self, sql: str) -> str:
        return sql

    def at(self, **more: Any) -> StepContext:
        """Where a step stands."""
        box = DeadLetterWriter(self.root / "letters", "flow", "after.0", "g1-abcdef")
        return StepContext(self.context, "flow", "after.0", StepDeadLetters(box), streaming=False, **more)

    def letters(self) -> list[dict[str, Any]]:
        return list(read_dead_letters(self.root / "letters").to_pylist())

    def run(self, spark: Any, step: Processor, rows: Sequence[Mapping[str, Any]], columns: str) -> list[dict[str, Any]]:
        """What a step makes of some rows."""
        schema = from_ddl(columns)
        table = pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
        bound = step.bound(self)
        made = bound.apply(spark.createDataFrame(table, columns), self.at())
        found = made.toArrow()
        expected = bound.output(schema)
        assert found.schema.names == expected.names
        return list(found.to_pylist())

    def work(self, step: Any, rows: pa.RecordBatch, **more: Any) -> pa.Table:
        """What an Arrow step makes of a batch, without Spark."""
        at = self.at(**more)
        done = list(step.bound(self).work(rows.schema, at)(iter([rows])))
        at.letters.flush()
        return pa.Table.from_batches(done)
