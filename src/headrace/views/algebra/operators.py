"""The algebra of views: a query as a few operators, each with a delta rule.

A relation is a bag of weighted rows. Scalar expressions are Spark SQL over the input's columns, in backticks. Names are
unique within a relation, and the inputs of a join share none. Operators are frozen data: `normalise` compiles SQL to
them, `maintain.deltas` has the delta rule of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Named = tuple[str, str]
"""A column name and its Spark SQL expression."""

ID = "_id"
"""The column that distinguishes copies of a row in a view without a key."""


@dataclass(frozen=True)
class Scan:
    """A table. `fields` are pairs (name in the algebra, name in the table) of the columns in use."""

    table: str
    fields: tuple[tuple[str, str], ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.fields)


@dataclass(frozen=True)
class Projection:
    """Computes expressions of each row; a generator among them may give several rows. Linear."""

    input: Operator
    expressions: tuple[Named, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.expressions)


@dataclass(frozen=True)
class Selection:
    """The rows for which the condition is true. Linear."""

    input: Operator
    condition: str

    @property
    def columns(self) -> tuple[str, ...]:
        return self.input.columns


@dataclass(frozen=True)
class UnionAll:
    """All rows of all inputs, which have the same columns in the same order. Linear."""

    inputs: tuple[Operator, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return self.inputs[0].columns


@dataclass(frozen=True)
class Equal:
    """A join condition: two columns are equal. With `nulls`, two nulls are equal."""

    left: str
    right: str
    nulls: bool = False


@dataclass(frozen=True)
class Join:
    """An inner join of two or more inputs, in any order: linear in each. Without `equal` it is a product."""

    inputs: tuple[Operator, ...]
    equal: tuple[Equal, ...]
    condition: str | None = None
    """Further condition on a combined row."""

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for input_ in self.inputs for name in input_.columns)


@dataclass(frozen=True)
class Match:
    """A join whose result also depends on rows without a match. Each value of the equal columns is one group.

    `left`, `right` and `full` fill rows without a match with nulls; `semi` returns the left rows that have a match,
    `anti` those that have none, each once. `equal` has at least one pair.
    """

    kind: Literal["left", "right", "full", "semi", "anti"]
    left: Operator
    right: Operator
    equal: tuple[Equal, ...]
    condition: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        return self.left.columns if self.kind in ("semi", "anti") else (*self.left.columns, *self.right.columns)


@dataclass(frozen=True)
class AggregateCall:
    """An aggregate function call: its column, the call as Spark SQL, and the parts that decide how it is maintained.

    Linear functions (count, sum, avg) may be maintained as sums, depending on the argument's type. All others are
    recomputed for the touched groups.
    """

    name: str
    sql: str
    function: str
    """In lower case, e.g. `count`."""
    argument: str | None = None
    """The argument of count, sum or avg; None for count(*) and for all other functions."""
    distinct: bool = False
    condition: str | None = None
    """The condition of FILTER (WHERE …); `sql` contains it too."""


@dataclass(frozen=True)
class Aggregate:
    """One row per group. Without keys: exactly one row, even for an empty input. Without calls: DISTINCT."""

    input: Operator
    keys: tuple[str, ...]
    """Columns of the input: a Projection below computes GROUP BY expressions."""
    calls: tuple[AggregateCall, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.keys, *(call.name for call in self.calls))


@dataclass(frozen=True)
class Ranked:
    """The input plus window functions that share one partition. Each partition is one group.

    The expressions are complete: `row_number() OVER (PARTITION BY …)`. All columns break ties, so the same rows always
    give the same result. LIMIT is a Ranked without `partition` below a Selection.
    """

    input: Operator
    partition: tuple[str, ...]
    expressions: tuple[Named, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.input.columns, *(name for name, _ in self.expressions))


Operator = Scan | Projection | Selection | UnionAll | Join | Match | Aggregate | Ranked


@dataclass(frozen=True)
class ViewPlan:
    """A compiled query."""

    root: Operator
    columns: tuple[str, ...]
    """The column names of the result, by position; those of `root` are generated."""
    key: tuple[str, ...]
    """The result columns that identify a row, declared or derived; empty if there are none."""


def inputs_of(operator: Operator) -> tuple[Operator, ...]:
    match operator:
        case Scan():
            return ()
        case UnionAll() | Join():
            return operator.inputs
        case Match():
            return (operator.left, operator.right)
        case _:
            return (operator.input,)


def scans(operator: Operator) -> Iterator[Scan]:
    """The scans of all tables, one for each time a table is read."""
    if isinstance(operator, Scan):
        yield operator
    for input_ in inputs_of(operator):
        yield from scans(input_)
