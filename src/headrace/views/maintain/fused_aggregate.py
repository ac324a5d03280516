"""From the sums of an aggregate to the rows of the result in one query, where little stands between them.

To ask Spark anything costs a tenth of a second, however few rows it is about; so the sums that are kept and the rows of
the result come from the same query, and the driver takes them apart.
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
    """An aggregate that is kept as sums, and what is done with each of its rows."""

    aggregate: Aggregate
    steps: tuple[Projection | Selection, ...]
    """From the aggregate up to the result."""

    def query(self, sums: Sums, groups: str, first: bool) -> str:
        """The touched groups, and beside each its row of the result as it is and as it was."""
        kept = [*self.aggregate.keys, *(one.name for one in sums.columns)]
        old = [one.name + deltas.OLD for one in sums.columns]
        now = self._answered(sums, deltas.NOW, groups, [*kept, *old], _AFTER, _IS)
        after, before = self._numbered(_AFTER), self._numbered(_BEFORE)
        if first:
            return select([*column_list([*kept, *after, _IS]), f"{_IS} AS {_CHANGED}"], now)
        text = self._answered(sums, deltas.OLD, now, [*kept, *after, _IS], _BEFORE, _WAS)
        same = " AND ".join([_IS, _WAS, *(f"{a} <=> {b}" for a, b in zip(after, before, strict=True))])
        return select([*column_list([*kept, *after, *before, _IS, _WAS]), f"NOT ({same}) AS {_CHANGED}"], text)

    def _answered(self, sums: Sums, which: str, groups: str, carried: Sequence[str], prefix: str, flag: str) -> str:
        """What is carried along (the keys are), the row of the result that some sums give in numbered columns, and a
        flag that says whether there is one."""
        op = self.aggregate
        values = sums.answers(lambda one: quoted(one.name + which))
        answers = [f"{value} AS {quoted(call.name)}" for value, call in zip(values, op.calls, strict=True)]
        text = select([*column_list(carried), *answers, f"{deltas.group_exists(op, which)} AS {_THERE}"], groups)
        for step in self.steps:
            text = _apply_step(step, text)
        made = [
            f"{name} AS {number}"
            for name, number in zip(column_list(self._columns), self._numbered(prefix), strict=True)
        ]
        return select([*column_list(carried), *made, f"{_THERE} AS {flag}"], text)

    def rows(self, table: pa.Table, columns: Sequence[str]) -> pa.Table:
        """The weighted rows of the result, under their names, out of what the query gave."""
        changed = table.filter(table.column(_CHANGED))
        parts = []
        for prefix, flag, weight in ((_AFTER, _IS, 1), (_BEFORE, _WAS, -1)):
            if flag in table.column_names:
                there = changed.filter(changed.column(flag))
                made = there.select(self._numbered(prefix)).rename_columns(list(columns))
                weights = pa.repeat(pa.scalar(weight, pa.int64()), made.num_rows)
                parts.append(made.append_column(pa.field(WEIGHT, pa.int64()), weights))
        return pa.concat_tables(parts)

    @property
    def _columns(self) -> tuple[str, ...]:
        return (self.steps[-1] if self.steps else self.aggregate).columns

    def _numbered(self, prefix: str) -> list[str]:
        return [f"{prefix}{number}" for number in range(len(self._columns))]


def fused_aggregate(root: Operator) -> FusedAggregate | None:
    """The result as one aggregate and steps that see each row alone; None when it is more than that, or when rows of
    two groups could come to be the same."""
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


def _apply_step(step: Projection | Selection, text: str) -> str:
    """A step that leaves rows where they are, with all they had: whether one is still there is said beside. Nothing is
    computed for one that is not, since that may fail."""
    if isinstance(step, Selection):
        there = f"{_THERE} AND coalesce(CASE WHEN {_THERE} THEN {step.condition} END, false)"
        return select([f"* EXCEPT ({_THERE})", f"{there} AS {_THERE}"], text)
    return select(["*", *(_if_there(sql, name) for name, sql in step.expressions if sql != quoted(name))], text)


def _if_there(sql: str, name: str) -> str:
    # nothing but NULL would have no type
    value = "CAST(NULL AS STRING)" if sql.upper() == "NULL" else f"CASE WHEN {_THERE} THEN {sql} END"
    return f"{value} AS {quoted(name)}"
