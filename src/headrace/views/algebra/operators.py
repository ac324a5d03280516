"""The algebra of views: what a query does, in a few operators, each with a rule for what a change of its input changes.

A relation is a bag of rows with weights. Scalar expressions are texts of Spark SQL over the column names of the input,
in backticks. Names are unique within a relation, and no two inputs of a join share one. All operators are frozen data;
`normalise` makes them from SQL, `deltas` says how each is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Named = tuple[str, str]
"""The name of a column, and the Spark SQL expression that gives it."""

ID = "_id"
"""The column that tells copies of rows apart where a view has no key."""


@dataclass(frozen=True)
class Scan:
    """A table. `fields` are pairs of the column's name here and its name in the table; only those that are used."""

    table: str
    fields: tuple[tuple[str, str], ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the result."""
        return tuple(name for name, _ in self.fields)


@dataclass(frozen=True)
class Projection:
    """Each row becomes one, or as many as a generator among the expressions makes of it. Linear."""

    input: Operator
    expressions: tuple[Named, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the result."""
        return tuple(name for name, _ in self.expressions)


@dataclass(frozen=True)
class Selection:
    """Rows for which the condition is true. Linear."""

    input: Operator
    condition: str

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the result."""
        return self.input.columns


@dataclass(frozen=True)
class UnionAll:
    """All rows of all inputs; they have the same column names in the same order. Linear."""

    inputs: tuple[Operator, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the result."""
        return self.inputs[0].columns


@dataclass(frozen=True)
class Equal:
    """Columns of two inputs that have to be equal. With `nulls`, two nulls are."""

    left: str
    right: str
    nulls: bool = False


@dataclass(frozen=True)
class Join:
    """An inner join of two or more inputs, in any order: linear in each. Without `equal` it is a product."""

    inputs: tuple[Operator, ...]
    equal: tuple[Equal, ...]
    condition: str | None = None
    """What else has to be true of a combined row."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of all inputs, in their order."""
        return tuple(name for one in self.inputs for name in one.columns)


@dataclass(frozen=True)
class Match:
    """A join that also depends on what does not match: each value of the equal columns is a group of its own.

    `left`, `right` and `full` keep rows without a match, with nulls; `semi` gives the left rows that have a match,
    `anti` those that have none, each once. `equal` has at least one pair.
    """

    kind: Literal["left", "right", "full", "semi", "anti"]
    left: Operator
    right: Operator
    equal: tuple[Equal, ...]
    condition: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Those of both sides, or of the left one alone."""
        return self.left.columns if self.kind in ("semi", "anti") else (*self.left.columns, *self.right.columns)


@dataclass(frozen=True)
class AggregateCall:
    """An aggregate: its column's name, the whole call as Spark SQL, and its parts where they matter to how it is kept.

    `linear` functions (count, sum, avg) may be kept as sums, depending on the type of the argument; all others are
    computed again for the groups that are touched.
    """

    name: str
    sql: str
    function: str
    """In lower case, e.g. `count`."""
    argument: str | None = None
    """The one argument of count, sum or avg; None for count(*) and for everything else."""
    distinct: bool = False
    condition: str | None = None
    """Of FILTER (WHERE …); it is part of `sql` too."""


@dataclass(frozen=True)
class Aggregate:
    """One row per group. Without keys there is exactly one row, also of no rows at all. Without calls: DISTINCT."""

    input: Operator
    keys: tuple[str, ...]
    """Columns of the input: expressions after GROUP BY were projected before."""
    calls: tuple[AggregateCall, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The keys, then the calls."""
        return (*self.keys, *(call.name for call in self.calls))


@dataclass(frozen=True)
class Ranked:
    """The rows with window functions beside them, which all have the same partition. Each partition is a group.

    The texts are complete: `row_number() OVER (PARTITION BY …)`. Ties are broken by all columns, so that the same rows
    always give the same answer. LIMIT is a Ranked without `partition` below a Filter.
    """

    input: Operator
    partition: tuple[str, ...]
    expressions: tuple[Named, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Those of the input, then the window functions."""
        return (*self.input.columns, *(name for name, _ in self.expressions))


Operator = Scan | Projection | Selection | UnionAll | Join | Match | Aggregate | Ranked


@dataclass(frozen=True)
class ViewPlan:
    """A whole query."""

    root: Operator
    columns: tuple[str, ...]
    """The names of the result, by position; those of `root` are made up."""
    key: tuple[str, ...]
    """The columns of the result that identify a row, declared or derived; empty when there are none."""


def inputs_of(operator: Operator) -> tuple[Operator, ...]:
    """What an operator reads."""
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
    """All tables that are read, each as often as it is."""
    if isinstance(operator, Scan):
        yield operator
    for one in inputs_of(operator):
        yield from scans(one)
