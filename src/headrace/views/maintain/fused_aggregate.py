"""Sums of an aggregate and the result delta from one query.

A Spark query costs a tenth of a second even for a few rows. If only projections and selections lie between an aggregate
and the result, one query returns both the sums to store and the result rows, and the driver separates them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.core.schema import quoted
from headrace.core.tables import WEIGHT
from headrace.views.algebra.operators import Aggregate, Operator, Projection, Selection
from headrace.views.algebra.sql_text import column_list, select
from headrace.views.maintain import deltas
from headrace.views.maintain.sums import Sums

_AFTER, _BEFORE = "__after_", "__before_"
_IS, _WAS, _CHANGED = "__is", "__was", "__changed"
_THERE = "__there"
_GENERATOR = re.compile(r"\b(explode|posexplode|inline|stack|json_tuple|variant_explode)\w*\s*\(", re.IGNORECASE)


@dataclass(frozen=True)
class FusedAggregate:
    """An aggregate maintained as sums, and the row-by-row steps from it to the result."""

    aggregate: Aggregate
    steps: tuple[Projection | Selection, ...]
    """In order, from the aggregate to the result."""

    def query_sql(self, sums: Sums, groups: str, first: bool) -> str:
        """The touched groups with their sums, each with its new and its old result row."""
        state_columns = [*self.aggregate.keys, *(sum_.name for sum_ in sums.columns)]
        old_sums = [sum_.name + deltas.OLD for sum_ in sums.columns]
        new_rows = self._with_result_row(sums, deltas.NOW, groups, [*state_columns, *old_sums], _AFTER, _IS)
        after, before = self._numbered(_AFTER), self._numbered(_BEFORE)
        if first:
            return select([*column_list([*state_columns, *after, _IS]), f"{_IS} AS {_CHANGED}"], new_rows)
        query = self._with_result_row(sums, deltas.OLD, new_rows, [*state_columns, *after, _IS], _BEFORE, _WAS)
        same = " AND ".join([_IS, _WAS, *(f"{a} <=> {b}" for a, b in zip(after, before, strict=True))])
        return select(
            [*column_list([*state_columns, *after, *before, _IS, _WAS]), f"NOT ({same}) AS {_CHANGED}"], query
        )

    def _with_result_row(
        self, sums: Sums, suffix: str, groups: str, carried: Sequence[str], prefix: str, flag: str
    ) -> str:
        """The carried columns, the result row of the sums as numbered columns, and a flag: the row exists."""
        op = self.aggregate
        values = sums.results(lambda sum_: quoted(sum_.name + suffix))
        results = [f"{value} AS {quoted(call.name)}" for value, call in zip(values, op.calls, strict=True)]
        query = select([*column_list(carried), *results, f"{deltas.group_exists(op, suffix)} AS {_THERE}"], groups)
        for step in self.steps:
            query = _apply_step(step, query)
        result_columns = [
            f"{name} AS {number}"
            for name, number in zip(column_list(self._columns), self._numbered(prefix), strict=True)
        ]
        return select([*column_list(carried), *result_columns, f"{_THERE} AS {flag}"], query)

    def rows(self, table: pa.Table, columns: Sequence[str]) -> pa.Table:
        """The weighted result rows from the collected query result."""
        changed = table.filter(table.column(_CHANGED))
        parts = []
        for prefix, flag, weight in ((_AFTER, _IS, 1), (_BEFORE, _WAS, -1)):
            if flag in table.column_names:
                existing = changed.filter(changed.column(flag))
                result_rows = existing.select(self._numbered(prefix)).rename_columns(list(columns))
                weights = pa.repeat(pa.scalar(weight, pa.int64()), result_rows.num_rows)
                parts.append(result_rows.append_column(pa.field(WEIGHT, pa.int64()), weights))
        return pa.concat_tables(parts)

    @property
    def _columns(self) -> tuple[str, ...]:
        return (self.steps[-1] if self.steps else self.aggregate).columns

    def _numbered(self, prefix: str) -> list[str]:
        return [f"{prefix}{number}" for number in range(len(self._columns))]


def fused_aggregate(root: Operator) -> FusedAggregate | None:
    """The result as one aggregate and row-by-row steps. None if it is more than that, or if two groups could give the
    same result row."""
    steps: list[Projection | Selection] = []
    below = root
    while isinstance(below, Projection | Selection):
        steps.append(below)
        below = below.input
    if not isinstance(below, Aggregate):
        return None
    names = {key: quoted(key) for key in below.keys}
    for step in reversed(steps):
        if isinstance(step, Projection):
            if any(_GENERATOR.search(sql) for _, sql in step.expressions):
                return None
            plain = {sql: name for name, sql in step.expressions}
            names = {key: quoted(plain[sql]) for key, sql in names.items() if sql in plain}
    return FusedAggregate(below, tuple(reversed(steps))) if len(names) == len(below.keys) else None


def _apply_step(step: Projection | Selection, query: str) -> str:
    """Applies a step without dropping rows or columns: a flag says whether a row still exists. Nothing is computed for
    rows that do not, since it may fail."""
    if isinstance(step, Selection):
        exists = f"{_THERE} AND coalesce(CASE WHEN {_THERE} THEN {step.condition} END, false)"
        return select([f"* EXCEPT ({_THERE})", f"{exists} AS {_THERE}"], query)
    return select(["*", *(_if_there(sql, name) for name, sql in step.expressions if sql != quoted(name))], query)


def _if_there(sql: str, name: str) -> str:
    # a bare NULL has no type
    value = "CAST(NULL AS STRING)" if sql.upper() == "NULL" else f"CASE WHEN {_THERE} THEN {sql} END"
    return f"{value} AS {quoted(name)}"
