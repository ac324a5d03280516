"""Tries a view on changes that a test gives, beside Spark's own answer to the same query."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.core.endpoints import Op
from headrace.core.errors import Exit, ProjectError, did_you_mean
from headrace.core.schema import quoted, to_ddl
from headrace.testing.viewtables import Row, TestTable, not_a_change, rows_of
from headrace.views.algebra.operators import ViewPlan
from headrace.views.compile.normalise import normalise
from headrace.views.maintain.incremental_view import IncrementalView, TableDelta
from headrace.views.maintain.keyed_changes import changes_by_key
from headrace.views.maintain.result_delta import ResultDelta
from headrace.views.maintain.runner import local_rows, nullable
from headrace.views.maintain.state import ViewState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WORDS = {Op.INSERT: "I", Op.UPDATE: "U", Op.DELETE: "D"}


class ViewHarness:
    """Tables and one view over them: `apply` is one batch of changes, `rows` the result, `changes` what the last batch
    emitted, `batch_rows` what Spark says when it is asked anew.

        tables = {"t": {"key": ["id"], "columns": {"id": "bigint", "v": "string"}}}
        with ViewHarness(tables, "SELECT v, count(*) AS n FROM t GROUP BY v") as view:
            view.apply([("I", "t", (1, "a")), ("I", "t", {"id": 2, "v": "a"})])
            assert view.rows() == [("a", 2)]
            view.apply([("U", "t", (2, "a"), (2, "b")), ("D", "t", (1, "a"))])
            assert sorted(view.changes()) == [("D", ("a", 2)), ("I", ("b", 1))]

    Rows are tuples of Python values in the order of the columns: `Decimal` with its scale, `datetime` in UTC for
    `timestamp`, arrays and structs as tuples. Their order means nothing. With a key a table has one row of it, and a
    change is about that row; without one it is a bag. What a view cannot have, and rows that do not fit, are a
    ProjectError. `view` is for one that is not made from the text.
    """

    def __init__(
        self,
        tables: Mapping[str, Mapping[str, Any]],
        sql: str,
        spark: SparkSession | None = None,
        *,
        key: Sequence[str] = (),
        view: ViewPlan | None = None,
    ) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="headrace-view-")
        self._tables = {name: TestTable(name, about) for name, about in tables.items()}
        self.tables = {name: table.shape for name, table in self._tables.items()}
        self.sql = sql
        self.view = view or normalise(sql, self.tables, key=key)
        # sessions of its own: settings are changed, and tables must not be mistaken for others of the same name
        self.spark = (spark or _session()).newSession()
        self._oracle = self.spark.newSession()
        self._logs: dict[str, list[pa.Table]] = {name: [] for name in tables}
        self._result: Counter[Row] = Counter()
        self._changes: list[tuple[Any, ...]] = []
        self._inputs: dict[str, TableDelta] = {}
        self._batch = 0
        self.restart()

    def restart(self) -> None:
        """Go on from what was kept, as a new process would."""
        state = ViewState(Path(self._scratch.name) / "state")
        self.maintained = IncrementalView(self.spark, self.view, self.tables, state)

    def apply(self, changes: Sequence[tuple[Any, ...]]) -> None:
        """One batch: `("I", table, row)`, `("U", table, old, new)`, `("D", table, row)`; rows as dicts or in order."""
        before = self._tables, {name: list(log) for name, log in self._logs.items()}
        try:
            self._result = self._run(self.inputs(changes), self._result)
        except Exception:
            self._tables, self._logs = before  # of a batch that fails nothing stays
            raise

    def again(self) -> None:
        """Run the last batch again, as happens after a crash; what it emits has to be the same."""
        self._batch -= 1
        self._run(self._inputs, Counter())

    def inputs(self, changes: Sequence[tuple[Any, ...]]) -> dict[str, TableDelta]:
        """The tables of a batch, in the session `spark`; the changes are part of the tables from then on."""
        after = {name: table.copy() for name, table in self._tables.items()}
        weighted = {name: after[name].change(found) for name, found in self._by_table(changes).items()}
        self._tables = after
        self._inputs = {name: self._input(name, rows) for name, rows in weighted.items()}
        for name, new in weighted.items():
            if new:
                self._logs[name].append(self._arrow(name, new))
        return self._inputs

    def _run(self, inputs: Mapping[str, TableDelta], before: Counter[Row]) -> Counter[Row]:
        after = Counter(before)
        emitted = self.maintained.apply(self._batch, inputs)
        rows = rows_of(nullable(emitted.frame).toArrow() if emitted.collected is None else emitted.collected)
        self._changes = self._told(emitted, rows)
        for *row, weight in rows:
            after[tuple(row)] += weight
        self._batch += 1
        return after

    def rows(self) -> list[Row]:
        """The result as it is, each row as often as it is there."""
        wrong = [row for row, count in self._result.items() if count < 0]
        assert not wrong, f"taken back more often than given: {wrong}"
        return list(self._result.elements())

    def changes(self) -> list[tuple[Any, ...]]:
        """What the last batch emitted: `("I", row)`, `("U", old, new)`, `("D", row)`; without a key there is no U."""
        return self._changes

    def batch_rows(self) -> list[Row]:
        """What Spark says to the query over the tables as they are."""
        for name, one in self._tables.items():
            table = one.arrow(list(one.rows.elements()), one.shape.columns)
            local_rows(self._oracle, table, to_ddl(table.schema)).createOrReplaceTempView(quoted(name))
        return rows_of(self._oracle.sql(self.sql).toArrow())

    def close(self) -> None:
        """Remove what was kept."""
        self._scratch.cleanup()

    def __enter__(self) -> ViewHarness:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _by_table(self, changes: Sequence[tuple[Any, ...]]) -> dict[str, list[tuple[Any, ...]]]:
        """The changes of each table in their order."""
        found: dict[str, list[tuple[Any, ...]]] = {name: [] for name in self.tables}
        for change in changes:
            if not isinstance(change, tuple | list) or len(change) < 2:
                raise not_a_change(change)
            name = change[1]
            if name not in found:
                hint = did_you_mean(str(name), self.tables, "tables")
                raise ProjectError("unknown-table", f"there is no table '{name}'", hint=hint, exit_code=Exit.NOT_FOUND)
            found[name].append(tuple(change))
        return found

    def _input(self, name: str, new: list[Row]) -> TableDelta:
        ddl = to_ddl(self.tables[name].weighted)
        old = pa.concat_tables([*self._logs[name], self._arrow(name, [])])
        delta = local_rows(self.spark, self._arrow(name, new), ddl) if new else None
        return TableDelta(
            delta, lambda: local_rows(self.spark, old, ddl), len(new), old.num_rows, len(self._logs[name])
        )

    def _arrow(self, name: str, rows: Sequence[Row]) -> pa.Table:
        return self._tables[name].arrow(rows, self.tables[name].weighted)

    def _told(self, emitted: ResultDelta, rows: list[Row]) -> list[tuple[Any, ...]]:
        if not self.view.key:
            return [("I" if weight > 0 else "D", tuple(row)) for *row, weight in rows for _ in range(abs(weight))]
        told: list[tuple[Any, ...]] = []
        with changes_by_key(emitted, self.view.key) as changes:
            # both ways have to be right: batches take turns
            few = changes.collected if self._batch % 2 else None
            keyed_rows = rows_of(changes.rows.toArrow() if few is None else few)
        for *row, op, old in keyed_rows:
            before = () if Op(op) is not Op.UPDATE else (old,)
            told.append((_WORDS[Op(op)], *before, tuple(row)))
        return told


def _session() -> SparkSession:
    """The session that runs, or one for tests."""
    from pyspark.sql import SparkSession

    from headrace.engine.spark.session import start_session
    from headrace.project.model import SparkSpec

    found = SparkSession.getActiveSession()
    return found or start_session(SparkSpec(master="local[2]"), "tests", Path(tempfile.mkdtemp(prefix="headrace-")))
