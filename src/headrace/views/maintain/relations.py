"""The relations of a view in one batch as Spark SQL: deltas, old rows and new rows of each operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headrace.core.schema import quoted
from headrace.core.tables import WEIGHT
from headrace.views.algebra.operators import (
    Aggregate,
    Equal,
    Join,
    Match,
    Operator,
    Projection,
    Ranked,
    Scan,
    Selection,
    UnionAll,
    inputs_of,
)
from headrace.views.algebra.sql_text import (
    SMALL_BATCH,
    KeyMatch,
    Restriction,
    column_list,
    empty_rows,
    restrict,
    select,
    union_all,
)
from headrace.views.maintain import deltas
from headrace.views.maintain.batch_query import OperatorTypes, aliased
from headrace.views.maintain.layout import Layout

_ONE_TASK = 200_000
"""Tables and stored relations of up to this many rows in total are read by a single task in a small batch."""


@dataclass(frozen=True)
class TempRelation:
    """A temporary view of Spark: its name and row count."""

    name: str
    rows: int


class Relations:
    """Gives SQL for the rows and deltas of operators; None means no rows. `set_delta` adds deltas already computed."""

    def __init__(
        self,
        layout: Layout,
        types: OperatorTypes,
        changed: Mapping[str, TempRelation],
        old: Callable[[str], TempRelation],
        stored: Mapping[Operator, TempRelation],
        first: bool,
    ) -> None:
        self._layout, self._types = layout, types
        self._changed, self._old, self.stored = changed, old, stored
        self.first = first
        """In the first batch all rows are new, whatever the tables report."""
        self._deltas: dict[Operator, tuple[str | None, int]] = {}
        self._table_rows: dict[str, int] = {}
        """Row counts of the tables read so far."""

    def set_delta(self, operator: Operator, sql: str | None, rows: int) -> None:
        self._deltas[operator] = (sql if rows else None, rows)

    def delta_size(self, operator: Operator) -> int:
        """The number of changed input rows that the delta of an operator is computed from."""
        if operator in self._deltas:
            return self._deltas[operator][1]
        if isinstance(operator, Scan):
            table = self._changed.get(operator.table)
            return table.rows if table else 0
        return sum(self.delta_size(below) for below in inputs_of(operator))

    def delta(self, operator: Operator) -> str | None:
        if operator in self._deltas:
            return self._deltas[operator][0]
        match operator:
            case Scan(table):
                changed = self._changed.get(table)
                return _scan_sql(operator, changed.name) if changed else None
            case Projection() | Selection() | UnionAll():
                return self._linear(operator, [self.delta(below) for below in inputs_of(operator)])
            case Join():
                return self._join_delta(operator)
            case Match():
                return self._match_delta(operator)
            case Aggregate() | Ranked():
                return self._group_delta(operator)

    def _linear(self, operator: Projection | Selection | UnionAll, inputs: Sequence[str | None]) -> str | None:
        if isinstance(operator, UnionAll):
            present = [(below, sql) for below, sql in zip(operator.inputs, inputs, strict=True) if sql is not None]
            return union_all(self._as_union_input(operator, below, sql) for below, sql in present)
        if inputs[0] is None:
            return None
        if isinstance(operator, Selection):
            return select(["*"], inputs[0], f"WHERE {operator.condition}")
        return select([*aliased(operator.expressions), WEIGHT], inputs[0])

    def _as_union_input(self, union: UnionAll, below: Operator, sql: str) -> str:
        """An input cast to the types of the union, which Spark cannot derive from one input."""
        union_types, input_types = self._types.of(union), list(self._types.of(below).values())
        columns = [
            quoted(name) if kind == input_type else f"CAST({quoted(name)} AS {kind}) AS {quoted(name)}"
            for (name, kind), input_type in zip(union_types.items(), input_types, strict=True)
        ]
        return select([*columns, WEIGHT], sql)

    def _join_delta(self, join: Join) -> str | None:
        delta = [self.delta(input_) for input_ in join.inputs]
        if not any(delta):
            return None
        changed = [number for number, input_delta in enumerate(delta) if input_delta is not None]
        # only the inputs that a delta is joined with: asking for rows may make Spark list files
        old = [self.rows(input_, False) if number < changed[-1] else None for number, input_ in enumerate(join.inputs)]
        new = [self.rows(input_, True) if number > changed[0] else None for number, input_ in enumerate(join.inputs)]
        return deltas.join_delta(join, delta, old, new, self.delta_size(join) <= SMALL_BATCH, self.in_one_task(join))

    def _match_delta(self, op: Match) -> str | None:
        sides = (op.left, op.right)
        delta = [self.delta(side) for side in sides]
        if not any(delta):
            return None
        left, right = (self._touched_values(op, side, delta) for side in sides)
        new = (self.rows(op.left, True, left), self.rows(op.right, True, right))
        old = (self.rows(op.left, False, left), self.rows(op.right, False, right))
        types = {**self._types.of(op.left), **self._types.of(op.right)}
        delta_sql = deltas.match_delta(op, old, new, types)
        # without a restriction the rows include them
        return (
            delta_sql if self.first else union_all([delta_sql, deltas.unmatchable_delta(op, delta[0], delta[1], types)])
        )

    def _touched_values(self, op: Match, side: Operator, delta: Sequence[str | None]) -> Restriction | None:
        """Restricts one side to the values of the equal columns that changed on either side."""
        if self.first:
            return None
        values = []
        for changed_side, sql in zip((op.left, op.right), delta, strict=True):
            if sql is not None:
                key_columns = [
                    f"{quoted(_column_of(pair, changed_side))} AS {quoted(f'__k{n}')}"
                    for n, pair in enumerate(op.equal)
                ]
                values.append(select(key_columns, sql))
        matches = tuple(KeyMatch(_column_of(pair, side), f"__k{n}", pair.nulls) for n, pair in enumerate(op.equal))
        return Restriction(union_all(values) or "", matches, self.delta_size(op) <= SMALL_BATCH)

    def _group_delta(self, op: Aggregate | Ranked) -> str | None:
        keys = op.keys if isinstance(op, Aggregate) else op.partition
        delta = self.delta(op.input)
        always_one_row = self.first and isinstance(op, Aggregate) and not op.keys
        if delta is None and not always_one_row:
            return None
        touched = self.touched_groups(op.input, keys)
        rows = self.rows(op.input, True, touched) or empty_rows(self._types.of(op.input))
        before = self.stored_rows(op, touched)
        return (
            deltas.regroup_delta(op, rows, before)
            if isinstance(op, Aggregate)
            else deltas.ranking_delta(op, rows, before)
        )

    def touched_groups(self, below: Operator, keys: Sequence[str]) -> Restriction | None:
        """Restricts rows to the groups that changed; None: all groups."""
        delta = self.delta(below)
        if self.first or not keys or delta is None:
            return None
        values = select([f"{quoted(key)} AS {quoted(f'__k{n}')}" for n, key in enumerate(keys)], delta)
        return Restriction(
            values, tuple(KeyMatch(key, f"__k{n}") for n, key in enumerate(keys)), self.delta_size(below) <= SMALL_BATCH
        )

    def rows(self, operator: Operator, new: bool, within: Restriction | None = None) -> str | None:
        """The rows after this batch (`new`) or before it."""
        if operator in self._layout.stored:
            return union_all([self.stored_rows(operator, within), restrict(self._delta_if(operator, new), within)])
        match operator:
            case Scan(table):
                return restrict(union_all([self._table(operator, table), self._delta_if(operator, new)]), within)
            case Projection(below):
                pushed = within.through(_plain_columns(operator)) if within else None
                sql = self._linear(operator, [self.rows(below, new, pushed)])
                return sql if within is None or within.covers(pushed) else restrict(sql, within)
            case Selection(below):
                return self._linear(operator, [self.rows(below, new, within)])
            case UnionAll(inputs):
                names = [dict(zip(operator.columns, input_.columns, strict=True)) for input_ in inputs]
                pushed_to = [within.through(input_) if within else None for input_ in names]
                return self._linear(
                    operator,
                    [
                        self.rows(input_, new, restriction)
                        for input_, restriction in zip(inputs, pushed_to, strict=True)
                    ],
                )
            case Join():
                return self._join_rows(operator, new, within)
            case _:
                raise AssertionError(f"{type(operator).__name__} is stored where its rows are needed")

    def _table(self, operator: Scan, table: str) -> str | None:
        if self.first:
            return None
        relation = self._old(table)
        self._table_rows[table] = relation.rows
        return _scan_sql(operator, relation.name)

    def in_one_task(self, operator: Operator) -> bool:
        """Whether the delta of an operator and all tables read so far are small enough for a single task."""
        stored_rows = sum(relation.rows for relation in self.stored.values())
        return self.delta_size(operator) <= SMALL_BATCH and sum(self._table_rows.values()) + stored_rows <= _ONE_TASK

    def _delta_if(self, operator: Operator, new: bool) -> str | None:
        return self.delta(operator) if new else None

    def _join_rows(self, join: Join, new: bool, within: Restriction | None) -> str | None:
        restrictions = [_input_restriction(join, input_, within) for input_ in join.inputs]
        sides = [
            self.rows(input_, new, restriction) for input_, restriction in zip(join.inputs, restrictions, strict=True)
        ]
        present = [side for side in sides if side is not None]
        if len(present) < len(sides):
            return None
        matched = [len(restriction.matches) if restriction else 0 for restriction in restrictions]
        first = matched.index(max(matched))
        sql = deltas.join_sides(join, present, first, within is not None and within.small)
        return sql if within is None or within.covers(restrictions[first]) else restrict(sql, within)

    def stored_rows(self, operator: Operator, within: Restriction | None = None) -> str | None:
        """The stored result of an operator before this batch."""
        relation = self.stored.get(operator)
        if relation is None or self.first:
            return None
        sums = self._layout.sums.get(operator)
        if sums is None or not isinstance(operator, Aggregate):
            return restrict(select([*column_list(operator.columns), WEIGHT], relation.name), within)
        pushed = within.through({key: key for key in operator.keys}) if within else None
        groups = deltas.total_sums(operator, sums, restrict(relation.name, pushed) or relation.name)
        sql = deltas.aggregate_rows(operator, sums, groups)
        return sql if within is None or within.covers(pushed) else restrict(sql, within)


def _scan_sql(scan: Scan, relation: str) -> str:
    return select([*(f"{quoted(source)} AS {quoted(name)}" for name, source in scan.fields), WEIGHT], relation)


def _column_of(equal: Equal, side: Operator) -> str:
    return equal.left if equal.left in side.columns else equal.right


def _plain_columns(projection: Projection) -> dict[str, str]:
    """The columns that a projection passes through, and their names in the input."""
    input_columns = {quoted(name): name for name in projection.input.columns}
    return {name: input_columns[sql] for name, sql in projection.expressions if sql in input_columns}


def _input_restriction(join: Join, input_: Operator, restriction: Restriction | None) -> Restriction | None:
    """The part of a join's restriction that applies to one input: by its own columns or those equal to them."""
    if restriction is None:
        return None
    names = {column: column for column in input_.columns}
    for equal in join.equal:
        for left, right in ((equal.left, equal.right), (equal.right, equal.left)):
            if left not in names and right in input_.columns:
                names[left] = right
    return restriction.through(names)
