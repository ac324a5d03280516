"""The relations of a view in one batch as texts of Spark SQL: what changed, what was, what is."""

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
"""Tables and relations of up to so many rows together are read by a single task beside few changes."""


@dataclass(frozen=True)
class TempRelation:
    """The name of a relation that Spark knows, and how many rows it has."""

    name: str
    rows: int


class Relations:
    """Answers in texts; None says that there are no rows. `took` tells it what was computed meanwhile."""

    def __init__(
        self,
        layout: Layout,
        types: OperatorTypes,
        changed: Mapping[str, TempRelation],
        old: Callable[[str], TempRelation],
        kept: Mapping[Operator, TempRelation],
        first: bool,
    ) -> None:
        self._layout, self._types = layout, types
        self._changed, self._old, self.kept = changed, old, kept
        self.first = first
        """In the first batch there was nothing before, whatever tables say."""
        self._taken: dict[Operator, tuple[str | None, int]] = {}
        self._read: dict[str, int] = {}
        """How many rows the tables have that were asked for."""

    def took(self, operator: Operator, text: str | None, rows: int) -> None:
        """The changes of this operator are there."""
        self._taken[operator] = (text if rows else None, rows)

    def changes(self, operator: Operator) -> int:
        """How many changed rows a text over the changes of an operator begins with."""
        if operator in self._taken:
            return self._taken[operator][1]
        if isinstance(operator, Scan):
            found = self._changed.get(operator.table)
            return found.rows if found else 0
        return sum(self.changes(below) for below in inputs_of(operator))

    def delta(self, operator: Operator) -> str | None:
        """What changed."""
        if operator in self._taken:
            return self._taken[operator][0]
        match operator:
            case Scan(table):
                found = self._changed.get(table)
                return _scan_sql(operator, found.name) if found else None
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
            given = [(below, text) for below, text in zip(operator.inputs, inputs, strict=True) if text is not None]
            return union_all(self._as(operator, below, text) for below, text in given)
        if inputs[0] is None:
            return None
        if isinstance(operator, Selection):
            return select(["*"], inputs[0], f"WHERE {operator.condition}")
        return select([*aliased(operator.expressions), WEIGHT], inputs[0])

    def _as(self, union: UnionAll, below: Operator, text: str) -> str:
        """An input of a union with the types of the union, which Spark would not know with one input alone."""
        wanted, given = self._types.of(union), list(self._types.of(below).values())
        what = [
            quoted(name) if kind == has else f"CAST({quoted(name)} AS {kind}) AS {quoted(name)}"
            for (name, kind), has in zip(wanted.items(), given, strict=True)
        ]
        return select([*what, WEIGHT], text)

    def _join_delta(self, join: Join) -> str | None:
        delta = [self.delta(one) for one in join.inputs]
        if not any(delta):
            return None
        places = [number for number, change in enumerate(delta) if change is not None]
        # only what a changed input is joined with: to ask for rows may make Spark look for their files
        old = [self.rows(one, False) if number < places[-1] else None for number, one in enumerate(join.inputs)]
        new = [self.rows(one, True) if number > places[0] else None for number, one in enumerate(join.inputs)]
        return deltas.join_delta(join, delta, old, new, self.changes(join) <= SMALL_BATCH, self.in_one_task(join))

    def _match_delta(self, op: Match) -> str | None:
        sides = (op.left, op.right)
        delta = [self.delta(side) for side in sides]
        if not any(delta):
            return None
        left, right = (self._touched(op, side, delta) for side in sides)
        new = (self.rows(op.left, True, left), self.rows(op.right, True, right))
        old = (self.rows(op.left, False, left), self.rows(op.right, False, right))
        types = {**self._types.of(op.left), **self._types.of(op.right)}
        changed = deltas.match_delta(op, old, new, types)
        # without a restriction they are among the rows already
        return changed if self.first else union_all([changed, deltas.unmatchable_delta(op, delta[0], delta[1], types)])

    def _touched(self, op: Match, side: Operator, delta: Sequence[str | None]) -> Restriction | None:
        """The values of the equal columns that changed on either side, as a restriction of one side."""
        if self.first:
            return None
        values = []
        for other, text in zip((op.left, op.right), delta, strict=True):
            if text is not None:
                mine = [f"{quoted(_column_of(one, other))} AS {quoted(f'__k{n}')}" for n, one in enumerate(op.equal)]
                values.append(select(mine, text))
        wanted = tuple(KeyMatch(_column_of(one, side), f"__k{n}", one.nulls) for n, one in enumerate(op.equal))
        return Restriction(union_all(values) or "", wanted, self.changes(op) <= SMALL_BATCH)

    def _group_delta(self, op: Aggregate | Ranked) -> str | None:
        keys = op.keys if isinstance(op, Aggregate) else op.partition
        change = self.delta(op.input)
        always = self.first and isinstance(op, Aggregate) and not op.keys
        if change is None and not always:
            return None
        within = self.touched_groups(op.input, keys)
        rows = self.rows(op.input, True, within) or empty_rows(self._types.of(op.input))
        before = self.kept_rows(op, within)
        return (
            deltas.regroup_delta(op, rows, before)
            if isinstance(op, Aggregate)
            else deltas.ranking_delta(op, rows, before)
        )

    def touched_groups(self, below: Operator, keys: Sequence[str]) -> Restriction | None:
        """The groups that changed; None when all are wanted."""
        change = self.delta(below)
        if self.first or not keys or change is None:
            return None
        values = select([f"{quoted(key)} AS {quoted(f'__k{n}')}" for n, key in enumerate(keys)], change)
        return Restriction(
            values, tuple(KeyMatch(key, f"__k{n}") for n, key in enumerate(keys)), self.changes(below) <= SMALL_BATCH
        )

    def rows(self, operator: Operator, new: bool, within: Restriction | None = None) -> str | None:
        """The rows as they are after this batch, or as they were before it."""
        if operator in self._layout.kept:
            return union_all([self.kept_rows(operator, within), restrict(self._only(operator, new), within)])
        match operator:
            case Scan(table):
                return restrict(union_all([self._table(operator, table), self._only(operator, new)]), within)
            case Projection(below):
                pushed = within.through(_plain_columns(operator)) if within else None
                text = self._linear(operator, [self.rows(below, new, pushed)])
                return text if within is None or within.covers(pushed) else restrict(text, within)
            case Selection(below):
                return self._linear(operator, [self.rows(below, new, within)])
            case UnionAll(inputs):
                names = [dict(zip(operator.columns, one.columns, strict=True)) for one in inputs]
                pushed_to = [within.through(one) if within else None for one in names]
                return self._linear(
                    operator, [self.rows(one, new, part) for one, part in zip(inputs, pushed_to, strict=True)]
                )
            case Join():
                return self._join_rows(operator, new, within)
            case _:
                raise AssertionError(f"{type(operator).__name__} is kept where its rows are needed")

    def _table(self, operator: Scan, table: str) -> str | None:
        if self.first:
            return None
        found = self._old(table)
        self._read[table] = found.rows
        return _scan_sql(operator, found.name)

    def in_one_task(self, operator: Operator) -> bool:
        """Whether the changes of an operator, and all that was asked for so far, are few enough for a single task."""
        kept = sum(one.rows for one in self.kept.values())
        return self.changes(operator) <= SMALL_BATCH and sum(self._read.values()) + kept <= _ONE_TASK

    def _only(self, operator: Operator, new: bool) -> str | None:
        return self.delta(operator) if new else None

    def _join_rows(self, join: Join, new: bool, within: Restriction | None) -> str | None:
        parts = [_input_restriction(join, one, within) for one in join.inputs]
        sides = [self.rows(one, new, part) for one, part in zip(join.inputs, parts, strict=True)]
        given = [side for side in sides if side is not None]
        if len(given) < len(sides):
            return None
        known = [len(part.wanted) if part else 0 for part in parts]
        begin = known.index(max(known))
        text = deltas.join_sides(join, given, begin, within is not None and within.small)
        return text if within is None or within.covers(parts[begin]) else restrict(text, within)

    def kept_rows(self, operator: Operator, within: Restriction | None = None) -> str | None:
        """The result of an operator before this batch, as it was kept."""
        found = self.kept.get(operator)
        if found is None or self.first:
            return None
        sums = self._layout.sums.get(operator)
        if sums is None or not isinstance(operator, Aggregate):
            return restrict(select([*column_list(operator.columns), WEIGHT], found.name), within)
        pushed = within.through({key: key for key in operator.keys}) if within else None
        groups = deltas.total_sums(operator, sums, restrict(found.name, pushed) or found.name)
        text = deltas.aggregate_rows(operator, sums, groups)
        return text if within is None or within.covers(pushed) else restrict(text, within)


def _scan_sql(scan: Scan, name: str) -> str:
    return select([*(f"{quoted(there)} AS {quoted(here)}" for here, there in scan.fields), WEIGHT], name)


def _column_of(equal: Equal, side: Operator) -> str:
    return equal.left if equal.left in side.columns else equal.right


def _plain_columns(project: Projection) -> dict[str, str]:
    """The columns that are just columns of the input."""
    known = {quoted(name): name for name in project.input.columns}
    return {name: known[sql] for name, sql in project.expressions if sql in known}


def _input_restriction(join: Join, one: Operator, within: Restriction | None) -> Restriction | None:
    """A restriction of a join as one of its inputs can know it: by its own columns, or those that have to be equal."""
    if within is None:
        return None
    names = {column: column for column in one.columns}
    for equal in join.equal:
        for left, right in ((equal.left, equal.right), (equal.right, equal.left)):
            if left not in names and right in one.columns:
                names[left] = right
    return within.through(names)
