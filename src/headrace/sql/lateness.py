"""When a row comes too late for a stateful query: Spark's own rule, read from the SQL.

Spark drops a row whose last window has ended at the watermark or before, whose session would have, or — where the event
time itself is a key of a GROUP BY, a DISTINCT or part of a join condition — whose time is not after it. Such rows can
be kept elsewhere before Spark sees them, if it is certain that nothing but the stateful operator would have used them.
It is certain only when the query has one stateful operator, reads every input once and hands the event time down to the
operator as it is. In every other case there is no rule: Spark drops late rows by itself, and its own count is all that
is known of them. Conditions that only Spark can evaluate come after this: a row is late whether or not a WHERE would
have kept it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from sqlglot import exp

from headrace.sql.query import Query, cte_of
from headrace.sql.streaming import aggregates, is_distinct

_MICROSECONDS = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_PART = re.compile(r"(-?\d{1,12})\s+([a-z]+?)s?(?:\s+|$)")


@dataclass(frozen=True)
class LateRule:
    """The end of a row's last window: `size` after the last multiple of `slide` (plus `offset`) up to its time.

    All in microseconds. A session is a window of `gap` that begins at any microsecond, a bare event time one without
    length. A row is late when that end is not after the watermark.
    """

    size: int = 0
    slide: int = 1
    offset: int = 0

    def end(self, time: int) -> int:
        """When the last window with a row of this time ends."""
        return (time - self.offset) // self.slide * self.slide + self.offset + self.size

    def bound(self, watermark: int) -> int:
        """Rows before this time are late, all others are not: one comparison per row."""
        return self.offset + ((watermark - self.offset - self.size) // self.slide + 1) * self.slide


_AS_IT_IS = LateRule()


@dataclass(frozen=True)
class TimedInput:
    """An input of a query: its event-time column and, where known, all its columns."""

    column: str | None
    columns: Collection[str] | None = None


def late_rules(
    query: Query, inputs: Mapping[str, TimedInput], inlined: Mapping[str, Query] | None = None
) -> dict[str, LateRule]:
    """The rule of each input that has one. `inlined` are the queries behind names that are no inputs."""
    queries = {name.lower(): one for name, one in (inlined or {}).items()}
    every = [query, *queries.values()]
    if any(_is_opaque(one) for one in every) or not _read_once(every):
        return {}
    operators = [(one, node) for one in every for node in _operators(one)]
    if len(operators) != 1:
        return {}
    names = {name.lower(): name for name in inputs}
    tracer = _EventTimeTracer(queries, {name.lower(): one for name, one in inputs.items()})
    return {names[name]: rule for name, rule in tracer.operator(operators[0][1]).items()}


def _is_opaque(query: Query) -> bool:
    """Whether rows may take ways that are not looked into here, or be counted before they reach the operator."""
    tree = query.tree
    if any(token.text == "|>" for token in query.tokens) or tree.find(exp.Pivot, exp.Except, exp.Intersect):
        return True
    if any(clause.args.get("recursive") for clause in tree.find_all(exp.With)):
        return True
    if any(node.args.get(key) for node in tree.find_all(exp.Query) for key in ("limit", "offset", "sample")):
        return True
    return any(not _is_relation(select) for select in tree.find_all(exp.Select))


def _is_relation(select: exp.Select) -> bool:
    holder: exp.Expr | None = select.parent
    while isinstance(holder, exp.Subquery | exp.SetOperation):
        holder = holder.parent
    return holder is None or isinstance(holder, exp.From | exp.Join | exp.CTE | exp.With)


def _read_once(queries: list[Query]) -> bool:
    """Whether no input, CTE or inlined flow is named twice: a row could go more than one way."""
    seen: Counter[object] = Counter()
    for query in queries:
        for table in query.tree.find_all(exp.Table):
            if table.name and not table.db and table.find_ancestor(exp.Hint) is None:
                cte = cte_of(table)
                seen[table.name.lower() if cte is None else id(cte)] += 1
    return max(seen.values(), default=0) <= 1


def _operators(query: Query) -> Iterator[exp.Expr]:
    """What keeps state: a SELECT that aggregates or is distinct, a UNION without ALL, a join of inputs."""
    for node in query.tree.find_all(exp.Select, exp.Union):
        if not query.reads_input(node):
            continue
        if is_distinct(node):
            yield node
        if isinstance(node, exp.Select) and (node.args.get("group") or aggregates(node)):
            yield node
    yield from (join for join in query.tree.find_all(exp.Join) if _joins_inputs(query, join))


def _joins_inputs(query: Query, join: exp.Join) -> bool:
    """Whether both sides of a join are streams; in brackets that is taken to be so."""
    if not isinstance(join.parent, exp.Select):
        return True
    before = join.parent.args["joins"][: join.index]
    left = [join.parent.args.get("from_"), *(one.this for one in before)]
    return query.reads_input(join.this) and any(query.reads_input(one) for one in left if one is not None)


@dataclass(frozen=True)
class _EventTimeTracer:
    """Follows the event time from the operator down to the inputs."""

    inlined: Mapping[str, Query]
    inputs: Mapping[str, TimedInput]

    def operator(self, node: exp.Expr) -> dict[str, LateRule]:
        match node:
            case exp.Join():
                return self._join(node)
            case exp.Select() if node.args.get("group") or aggregates(node):
                found = [self._expression(key, node) for key in self._keys(node)]
            case exp.Query() if not _has_star(node):
                found = [self._output(node, index) for index in range(len(node.selects))]
            case exp.Select(expressions=[exp.Star() as star]) if not any(star.args.values()):
                found = [self._only_event_time(node)]
            case _:
                return {}
        timed = [rules for rules in found if rules]
        return timed[0] if len(timed) == 1 else {}

    def _keys(self, select: exp.Select) -> Iterator[exp.Expr]:
        """What the groups are made of; nothing where that is not certain."""
        group = select.args.get("group")
        if group is None or group.find(exp.Rollup, exp.Cube, exp.GroupingSets):
            return
        if group.args.get("all"):
            yield from select.selects
            return
        for key in group.expressions:
            plain = key.unnest()
            if isinstance(plain, exp.Literal) and plain.is_int:
                yield from select.selects[int(plain.name) - 1 : int(plain.name)]
            elif isinstance(plain, exp.Column) and not plain.table and not self._has_column(select, plain.name):
                yield from (item for item in select.selects if item.alias.lower() == plain.name.lower())
            else:
                yield plain

    def _has_column(self, select: exp.Select, name: str) -> bool:
        """Whether the name is, or may be, a column of what the SELECT reads; an alias comes after those."""
        relations = _relations(select)
        return len(relations) != 1 or bool(select.args.get("laterals")) or self._may_have(relations[0], name.lower())

    def _may_have(self, relation: exp.Expr, name: str) -> bool:
        query = self._query_of(relation)
        if query is not None:
            return _has_star(query) or name in (given.lower() for given in query.named_selects)
        known = self.inputs.get(relation.name.lower()) if isinstance(relation, exp.Table) else None
        return known is None or known.columns is None or name in (column.lower() for column in known.columns)

    def _join(self, join: exp.Join) -> dict[str, LateRule]:
        """Spark drops by the event time on each side that brings it along: those whose time the condition names."""
        select, condition = join.parent, join.args.get("on")
        if not isinstance(select, exp.Select) or condition is None:
            return {}
        found: dict[str, LateRule] = {}
        for column in condition.find_all(exp.Column):
            rules = self._expression(column, select) if column.table else None
            # the time of the join is that of the row; a window on one side is left to Spark
            if rules and set(rules.values()) == {_AS_IT_IS}:
                found |= rules
        return found

    def _expression(self, expression: exp.Expr, select: exp.Select) -> dict[str, LateRule] | None:
        plain = expression.unalias().unnest()
        if isinstance(plain, exp.Column):
            return self._column(plain, select)
        if isinstance(plain, exp.Anonymous) and plain.name.lower() in ("window", "session_window"):
            rule = _window(plain)
            time = plain.expressions[0].unnest() if plain.expressions else None
            rules = self._column(time, select) if isinstance(time, exp.Column) else None
            if rule is not None and rules and set(rules.values()) == {_AS_IT_IS}:
                return dict.fromkeys(rules, rule)
        return None

    def _column(self, column: exp.Column, select: exp.Select) -> dict[str, LateRule] | None:
        relations = _relations(select)
        if len(column.parts) > 2 or isinstance(column.this, exp.Star):
            return None
        if column.table:
            named = [one for one in relations if one.alias_or_name.lower() == column.table.lower()]
        else:
            named = relations if len(relations) == 1 else []
        return self._relation(named[0], column.name.lower()) if len(named) == 1 else None

    def _relation(self, relation: exp.Expr, name: str) -> dict[str, LateRule] | None:
        query = self._query_of(relation)
        if query is not None:
            return self._named(query, name)
        known = self.inputs.get(relation.name.lower()) if isinstance(relation, exp.Table) else None
        if known is None or known.column is None or known.column.lower() != name:
            return None
        return {relation.name.lower(): _AS_IT_IS}

    def _query_of(self, relation: exp.Expr) -> exp.Query | None:
        """The query behind a relation that is no input."""
        if isinstance(relation, exp.Subquery):
            inner = relation.this
            return inner if isinstance(inner, exp.Query) and not relation.alias_column_names else None
        if not isinstance(relation, exp.Table):
            return None
        cte = cte_of(relation)
        if cte is not None:
            return None if cte.alias_column_names else cte.this
        inlined = self.inlined.get(relation.name.lower())
        return None if inlined is None else inlined.tree

    def _named(self, query: exp.Query, name: str) -> dict[str, LateRule] | None:
        """The rules of a query's column of that name."""
        places = [i for i, item in enumerate(query.selects) if item.alias_or_name.lower() == name]
        if len(places) == 1 and not _has_star(query):
            return self._output(query, places[0])
        plain_star = len(query.selects) == 1 and isinstance(query.selects[0], exp.Star)
        if isinstance(query, exp.Select) and plain_star and not any(query.selects[0].args.values()):
            return self._column(exp.column(name), query)
        return None

    def _output(self, query: exp.Expr, index: int) -> dict[str, LateRule] | None:
        """The rules of a query's column at a place; in a UNION that of every branch, which must agree."""
        match query:
            case exp.Subquery():
                return self._output(query.this, index)
            case exp.Union() if not query.args.get("by_name"):
                left, right = self._output(query.left, index), self._output(query.right, index)
                return left | right if left and right and set(left.values()) == set(right.values()) else None
            case exp.Select() if not _has_star(query) and index < len(query.selects):
                return self._expression(query.selects[index], query)
        return None

    def _only_event_time(self, select: exp.Select) -> dict[str, LateRule] | None:
        """The event time among all columns of the one input that a SELECT reads directly."""
        relations = _relations(select)
        known = self.inputs.get(relations[0].name.lower()) if len(relations) == 1 else None
        if known is None or known.column is None or self._query_of(relations[0]) is not None:
            return None
        return self._relation(relations[0], known.column.lower())


def _has_star(query: exp.Query) -> bool:
    return any(item.is_star for item in query.selects)


def _relations(select: exp.Select) -> list[exp.Expr]:
    """What stands in FROM and its joins; nothing when some of it is in brackets."""
    clause = select.args.get("from_")
    found = [clause.this] if clause is not None else []
    found += [join.this for join in select.args.get("joins") or ()]
    return [] if any(one.args.get("joins") or one.args.get("laterals") for one in found) else found


def _window(call: exp.Anonymous) -> LateRule | None:
    """The rule of `window(time, size[, slide[, offset]])` or `session_window(time, gap)` with written-out lengths."""
    lengths = [_microseconds(argument) for argument in call.expressions[1:]]
    known = [length for length in lengths if length is not None]
    if len(known) < len(lengths) or not known or known[0] <= 0:
        return None
    if call.name.lower() == "session_window":
        return LateRule(size=known[0]) if len(known) == 1 else None
    size, slide, offset = [*known, *[known[0], 0][len(known) - 1 :]][:3]
    return LateRule(size, slide, offset) if 0 < slide <= size and len(known) <= 3 else None


def _microseconds(argument: exp.Expr) -> int | None:
    """A length of time written as Spark's text, e.g. '1 minute 30 seconds'; None for all other forms."""
    if not (isinstance(argument, exp.Literal) and argument.is_string):
        return None
    text = argument.name.strip().lower().removeprefix("interval ").strip()
    total, position = 0, 0
    while position < len(text):
        part = _PART.match(text, position)
        if part is None or part[2] not in _MICROSECONDS:
            return None
        total += int(part[1]) * _MICROSECONDS[part[2]]
        position = part.end()
    return total if text else None
