"""What a query keeps between batches, operator by operator, in words that stay the same when only the spelling changes.

Columns are traced through subqueries, CTEs and flows that became part of the query down to the inputs; where that is
not certain, the whole text is described, so that any change counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sqlglot import exp

from headrace.sql.canonical import canonical, conjuncts
from headrace.sql.query import Query
from headrace.sql.streaming import state_of
from headrace.sql.tracing import Given, Inlined, Leaf, Operators, UnclearError, trace

__all__ = ["Given", "Inlined", "Leaf", "Operators", "all_conditions", "operators"]


def operators(query: Query, inputs: Mapping[str, Given]) -> Operators:
    """The stateful operators, in the order in which rows meet them. `inputs` are by lower-case name."""
    if not any(state_of(one) for one in _queries(query, inputs)):
        return Operators()
    try:
        result = trace(query, inputs)
    except (UnclearError, RecursionError):
        result = _whole(query, inputs)
    if any(one["operator"] == "join" for one in result.found):
        # a condition may let Spark keep a column as never null, and that is part of what it keeps
        conditions = [text for one in _queries(query, inputs) for text in all_conditions(one)]
        result.found.append({"operator": "conditions", "all": conditions})
    return result


def _whole(query: Query, inputs: Mapping[str, Given]) -> Operators:
    """All there is: every text, and every column of every input."""
    leaves = {leaf.name: list(leaf.columns or ()) for leaf in _leaves(inputs)}
    texts = [canonical(one.tree) for one in _queries(query, inputs)]
    columns: set[tuple[str, ...]] = {(name, column.lower()) for name, known in leaves.items() for column in known}
    return Operators([{"operator": "query", "text": texts, "inputs": leaves}], columns)


def _leaves(inputs: Mapping[str, Given]) -> Iterator[Leaf]:
    for given in inputs.values():
        if isinstance(given, Leaf):
            yield given
        else:
            yield from _leaves(given.inputs)


def all_conditions(query: Query) -> list[str]:
    """Every WHERE and HAVING, part by part."""
    clauses = query.tree.find_all(exp.Where, exp.Having, bfs=False)
    own = (clause for clause in clauses if not isinstance(clause.parent, exp.Filter))
    return sorted(canonical(part) for clause in own for part in conjuncts(clause.this))


def _queries(query: Query, inputs: Mapping[str, Given]) -> Iterator[Query]:
    """The query and those that became part of it, the innermost first."""
    for name in query.tables:
        given = inputs.get(name.lower())
        if isinstance(given, Inlined):
            yield from _queries(given.query, given.inputs)
    yield query
