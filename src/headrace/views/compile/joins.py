"""Conditions between inputs as pairs of equal columns, and what is left of them."""

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
    """Equalities between inputs, found so far."""

    inputs: list[Operator]
    names: FreshNames
    equal: list[Equal] = field(default_factory=list)
    rest: list[exp.Expr] = field(default_factory=list)

    def side(self, node: exp.Expr) -> int | None:
        """The one input that an expression is about."""
        wanted = refs(node)
        sides = [place for place, one in enumerate(self.inputs) if wanted & set(one.columns)]
        inside = len(sides) == 1 and wanted <= set(self.inputs[sides[0]].columns)
        return sides[0] if inside else None

    def pair(self, condition: exp.Expr) -> bool:
        """Take a condition as an equality of two inputs, if it is one."""
        if not isinstance(condition, _EQUAL):
            return False
        left, right = self.side(condition.left), self.side(condition.right)
        if left is None or right is None or left == right:
            return False
        if left > right:
            left, right = right, left
            condition = type(condition)(this=condition.right, expression=condition.left)
        columns = [self._column(left, condition.left), self._column(right, condition.right)]
        made = Equal(columns[0], columns[1], isinstance(condition, exp.NullSafeEQ))
        if made not in self.equal:
            self.equal.append(made)
        return True

    def _column(self, side: int, node: exp.Expr) -> str:
        self.inputs[side], (column,) = with_columns(self.inputs[side], [node.unnest()], self.names, "key")
        return column

    @property
    def condition(self) -> str | None:
        """What else has to be true."""
        return to_sql(conjunction(self.rest)) if self.rest else None


def inner_join(inputs: Sequence[Operator], conditions: Sequence[exp.Expr], names: FreshNames) -> Operator:
    """The combined rows of the inputs for which all conditions are true."""
    pairs = _Pairs(list(inputs), names)
    for condition in conditions:
        side = pairs.side(condition)
        if side is not None or not refs(condition):
            place = side or 0
            pairs.inputs[place] = add_filter(pairs.inputs[place], [condition])
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
    """The rows with and without a match; None when there is no equality to find matches by.

    A condition on the side whose rows need not be kept is a filter of that side; all others say what a match is.
    """
    pairs = _Pairs([left, right], names)
    free = {"left": 1, "semi": 1, "anti": 1, "right": 0}.get(kind)
    for condition in conditions:
        side = pairs.side(condition)
        if side is not None and side == free:
            pairs.inputs[side] = add_filter(pairs.inputs[side], [condition])
        elif not pairs.pair(condition) and not (isinstance(condition, exp.Boolean) and condition.this):
            pairs.rest.append(condition)
    if not pairs.equal:
        return None
    return Match(kind, pairs.inputs[0], pairs.inputs[1], tuple(pairs.equal), pairs.condition)


def no_equality(env: Env, node: exp.Expr, what: str) -> Exception:
    """The error for a match that has nothing to be found by."""
    message = f"{what} without an equality of both sides: every change would be compared with every row"
    return env.refuse(node, message, "join on at least one pair of columns: ON a.x = b.y AND …")


def conditions_of(condition: exp.Expr | None) -> list[exp.Expr]:
    """What has to be true together."""
    return [] if condition is None else list(conjuncts(condition))
