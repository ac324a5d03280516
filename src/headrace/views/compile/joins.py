"""Splits join conditions into pairs of equal columns and a remaining condition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from sqlglot import exp

from headrace.sql.canonical import conjuncts
from headrace.views.algebra.names import FreshNames
from headrace.views.algebra.operators import Equal, Join, Match, Operator
from headrace.views.compile.parsing import conjunction, to_sql
from headrace.views.compile.pushdown import add_filter, with_columns
from headrace.views.compile.scope import Env, refs

_EQUAL = (exp.EQ, exp.NullSafeEQ)


@dataclass
class _Pairs:
    """The equalities between inputs, and the remaining conditions."""

    inputs: list[Operator]
    names: FreshNames
    equal: list[Equal] = field(default_factory=list)
    rest: list[exp.Expr] = field(default_factory=list)

    def side(self, node: exp.Expr) -> int | None:
        """The only input whose columns the expression uses; None if there are several."""
        columns = refs(node)
        sides = [position for position, input_ in enumerate(self.inputs) if columns & set(input_.columns)]
        is_single = len(sides) == 1 and columns <= set(self.inputs[sides[0]].columns)
        return sides[0] if is_single else None

    def pair(self, condition: exp.Expr) -> bool:
        """Add the condition if it is an equality between two inputs; returns whether it is."""
        if not isinstance(condition, _EQUAL):
            return False
        left, right = self.side(condition.left), self.side(condition.right)
        if left is None or right is None or left == right:
            return False
        if left > right:
            left, right = right, left
            condition = type(condition)(this=condition.right, expression=condition.left)
        columns = [self._column(left, condition.left), self._column(right, condition.right)]
        equal = Equal(columns[0], columns[1], isinstance(condition, exp.NullSafeEQ))
        if equal not in self.equal:
            self.equal.append(equal)
        return True

    def _column(self, side: int, node: exp.Expr) -> str:
        self.inputs[side], (column,) = with_columns(self.inputs[side], [node.unnest()], self.names, "key")
        return column

    @property
    def condition(self) -> str | None:
        return to_sql(conjunction(self.rest)) if self.rest else None


def inner_join(inputs: Sequence[Operator], conditions: Sequence[exp.Expr], names: FreshNames) -> Operator:
    pairs = _Pairs(list(inputs), names)
    for condition in conditions:
        side = pairs.side(condition)
        if side is not None or not refs(condition):
            position = side or 0
            pairs.inputs[position] = add_filter(pairs.inputs[position], [condition])
        elif not pairs.pair(condition):
            pairs.rest.append(condition)
    if len(pairs.inputs) == 1:
        return pairs.inputs[0]
    return Join(tuple(pairs.inputs), tuple(pairs.equal), pairs.condition)


def match_join(
    kind: Literal["left", "right", "full", "semi", "anti"],
    left: Operator,
    right: Operator,
    conditions: Sequence[exp.Expr],
    names: FreshNames,
) -> Match | None:
    """The outer, semi or anti join; None if no condition is an equality.

    A condition on only the side that is not preserved is a filter of that side; all others define a match.
    """
    pairs = _Pairs([left, right], names)
    filterable = {"left": 1, "semi": 1, "anti": 1, "right": 0}.get(kind)
    for condition in conditions:
        side = pairs.side(condition)
        if side is not None and side == filterable:
            pairs.inputs[side] = add_filter(pairs.inputs[side], [condition])
        elif not pairs.pair(condition) and not (isinstance(condition, exp.Boolean) and condition.this):
            pairs.rest.append(condition)
    if not pairs.equal:
        return None
    return Match(kind, pairs.inputs[0], pairs.inputs[1], tuple(pairs.equal), pairs.condition)


def no_equality(env: Env, node: exp.Expr, join_name: str) -> Exception:
    """The error for a join without an equality."""
    message = f"{join_name} without an equality between both sides: every change would be compared with every row"
    return env.refuse(node, message, "join on at least one pair of columns: ON a.x = b.y AND …")


def conditions_of(condition: exp.Expr | None) -> list[exp.Expr]:
    return [] if condition is None else list(conjuncts(condition))
