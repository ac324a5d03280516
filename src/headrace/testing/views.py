"""Runs an incremental view on changes of a test, and the same query as a batch."""

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
from headrace.core.runtime.lazy import lazy_modules
from headrace.core.schema import quoted, to_ddl
from headrace.project.model import SparkSpec
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

    from headrace.engine.spark import session
else:
    session = lazy_modules("headrace.engine.spark.session")

_WORDS = {Op.INSERT: "I", Op.UPDATE: "U", Op.DELETE: "D"}


class ViewHarness:
    """Tables and one view over them: `apply` runs one batch of changes, `rows` is the result, `changes` the output of
    the last batch, `batch_rows` Spark's batch result of the same query.

        tables = {"t": {"key": ["id"], "columns": {"id": "bigint", "v": "string"}}}
        with ViewHarness(tables, "SELECT v, count(*) AS n FROM t GROUP BY v") as view:
            view.apply([("I", "t", (1, "a")), ("I", "t", {"id": 2, "v": "a"})])
            assert view.rows() == [("a", 2)]
            view.apply([("U", "t", (2, "a"), (2, "b")), ("D", "t", (1, "a"))])
            assert sorted(view.changes()) == [("D", ("a", 2)), ("I", ("b", 1))]

    Rows are tuples of Python values in the order of the columns: `Decimal` with its scale, `datetime` in UTC for
    `timestamp`, arrays and structs as tuples. Their order is undefined. With a key a table has one row per key; without
    one it is a bag. An unsupported view and rows that do not fit raise a ProjectError. `view` replaces the view that
    would be compiled from `sql`.
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
        # separate sessions: settings are changed, and table names must not clash
        self.spark = (spark or _session()).newSession()
        self._oracle = self.spark.newSession()
        self._logs: dict[str, list[pa.Table]] = {name: [] for name in tables}
        self._result: Counter[Row] = Counter()
        self._changes: list[tuple[Any, ...]] = []
        self._inputs: dict[str, TableDelta] = {}
        self._batch = 0
        self.restart()

    def restart(self) -> None:
        """Resume from the stored state, as a new process would."""
        state = ViewState(Path(self._scratch.name) / "state")
        self.maintained = IncrementalView(self.spark, self.view, self.tables, state)

    def apply(self, changes: Sequence[tuple[Any, ...]]) -> None:
        """One batch: `("I", table, row)`, `("U", table, old, new)`, `("D", table, row)`; rows as dicts or in order."""
        before = self._tables, {name: list(log) for name, log in self._logs.items()}
        try:
            self._result = self._run(self.inputs(changes), self._result)
        except Exception:
            self._tables, self._logs = before  # a failed batch leaves no trace
            raise

    def again(self) -> None:
        """Repeat the last batch, as happens after a crash; its output must be the same."""
        self._batch -= 1
        self._run(self._inputs, Counter())

    def inputs(self, changes: Sequence[tuple[Any, ...]]) -> dict[str, TableDelta]:
        """The deltas of a batch in the session `spark`; the tables contain the changes from then on."""
        after = {name: table.copy() for name, table in self._tables.items()}
        weighted = {name: after[name].change(table_changes) for name, table_changes in self._by_table(changes).items()}
        self._tables = after
        self._inputs = {name: self._table_delta(name, rows) for name, rows in weighted.items()}
        for name, new in weighted.items():
            if new:
                self._logs[name].append(self._arrow(name, new))
        return self._inputs

    def _run(self, inputs: Mapping[str, TableDelta], before: Counter[Row]) -> Counter[Row]:
        after = Counter(before)
        emitted = self.maintained.apply(self._batch, inputs)
        rows = rows_of(nullable(emitted.frame).toArrow() if emitted.collected is None else emitted.collected)
        self._changes = self._changes_of(emitted, rows)
        for *row, weight in rows:
            after[tuple(row)] += weight
        self._batch += 1
        return after

    def rows(self) -> list[Row]:
        """The current result, each row as often as it occurs."""
        wrong = [row for row, count in self._result.items() if count < 0]
        assert not wrong, f"deleted more often than inserted: {wrong}"
        return list(self._result.elements())

    def changes(self) -> list[tuple[Any, ...]]:
        """The output of the last batch: `("I", row)`, `("U", old, new)`, `("D", row)`; without a key there is no U."""
        return self._changes

    def batch_rows(self) -> list[Row]:
        """Spark's batch result of the query over the current tables."""
        for name, test_table in self._tables.items():
            table = test_table.arrow(list(test_table.rows.elements()), test_table.shape.columns)
            local_rows(self._oracle, table, to_ddl(table.schema)).createOrReplaceTempView(quoted(name))
        return rows_of(self._oracle.sql(self.sql).toArrow())

    def close(self) -> None:
        """Remove the state."""
        self._scratch.cleanup()

    def __enter__(self) -> ViewHarness:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _by_table(self, changes: Sequence[tuple[Any, ...]]) -> dict[str, list[tuple[Any, ...]]]:
        by_table: dict[str, list[tuple[Any, ...]]] = {name: [] for name in self.tables}
        for change in changes:
            if not isinstance(change, tuple | list) or len(change) < 2:
                raise not_a_change(change)
            name = change[1]
            if name not in by_table:
                hint = did_you_mean(str(name), self.tables, "tables")
                raise ProjectError("unknown-table", f"there is no table '{name}'", hint=hint, exit_code=Exit.NOT_FOUND)
            by_table[name].append(tuple(change))
        return by_table

    def _table_delta(self, name: str, new: list[Row]) -> TableDelta:
        ddl = to_ddl(self.tables[name].weighted)
        old = pa.concat_tables([*self._logs[name], self._arrow(name, [])])
        delta = local_rows(self.spark, self._arrow(name, new), ddl) if new else None
        return TableDelta(
            delta, lambda: local_rows(self.spark, old, ddl), len(new), old.num_rows, len(self._logs[name])
        )

    def _arrow(self, name: str, rows: Sequence[Row]) -> pa.Table:
        return self._tables[name].arrow(rows, self.tables[name].weighted)

    def _changes_of(self, emitted: ResultDelta, rows: list[Row]) -> list[tuple[Any, ...]]:
        if not self.view.key:
            return [("I" if weight > 0 else "D", tuple(row)) for *row, weight in rows for _ in range(abs(weight))]
        with changes_by_key(emitted, self.view.key) as keyed:
            # batches alternate between the driver's and Spark's computation: both must be right
            collected = keyed.collected if self._batch % 2 else None
            keyed_rows = rows_of(keyed.rows.toArrow() if collected is None else collected)
        return [(_WORDS[Op(op)], *((old,) if Op(op) is Op.UPDATE else ()), tuple(row)) for *row, op, old in keyed_rows]


def _session() -> SparkSession:
    """The active session, or a new one for tests."""
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    return active or session.start_session(
        SparkSpec(master="local[2]"), "tests", Path(tempfile.mkdtemp(prefix="headrace-"))
    )
