"""The stateful operators of a query, in a description that does not depend on spelling.

Columns are traced through subqueries, CTEs and inlined flows to the inputs; where that is not certain, the description
is the whole text, so that any change counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sqlglot import exp

from headrace.sql.canonical import canonical, conjuncts
from headrace.sql.query import Query
from headrace.sql.streaming import state_of
from headrace.sql.tracing import Inlined, Leaf, Operators, TraceInput, UnclearError, trace

__all__ = ["Inlined", "Leaf", "Operators", "TraceInput", "all_conditions", "operators"]


def operators(query: Query, inputs: Mapping[str, TraceInput]) -> Operators:
    """The stateful operators in the order of the dataflow. `inputs` are by lower-case name."""
    if not any(state_of(part) for part in _queries(query, inputs)):
        return Operators()
    try:
        result = trace(query, inputs)
    except (UnclearError, RecursionError):
        result = _whole(query, inputs)
    if any(part["operator"] == "join" for part in result.found):
        # a condition may make a column NOT NULL, which is part of the state schema
        conditions = [text for part in _queries(query, inputs) for text in all_conditions(part)]
        result.found.append({"operator": "conditions", "all": conditions})
    return result


def _whole(query: Query, inputs: Mapping[str, TraceInput]) -> Operators:
    """The fallback: every text, and every column of every input."""
    leaves = {leaf.name: list(leaf.columns or ()) for leaf in _leaves(inputs)}
    texts = [canonical(part.tree) for part in _queries(query, inputs)]
    columns: set[tuple[str, ...]] = {(name, column.lower()) for name, names in leaves.items() for column in names}
    return Operators([{"operator": "query", "text": texts, "inputs": leaves}], columns)


def _leaves(inputs: Mapping[str, TraceInput]) -> Iterator[Leaf]:
    for input_ in inputs.values():
        if isinstance(input_, Leaf):
            yield input_
        else:
            yield from _leaves(input_.inputs)


def all_conditions(query: Query) -> list[str]:
    """The conjuncts of every WHERE and HAVING."""
    clauses = query.tree.find_all(exp.Where, exp.Having, bfs=False)
    own = (clause for clause in clauses if not isinstance(clause.parent, exp.Filter))
    return sorted(canonical(part) for clause in own for part in conjuncts(clause.this))


def _queries(query: Query, inputs: Mapping[str, TraceInput]) -> Iterator[Query]:
    """The query and its inlined queries, the innermost first."""
    for name in query.tables:
        input_ = inputs.get(name.lower())
        if isinstance(input_, Inlined):
            yield from _queries(input_.query, input_.inputs)
    yield query
