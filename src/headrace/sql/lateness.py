"""When a row is too late for a stateful query: Spark's rule, derived from the SQL.

Spark drops a row if its last window, or its session, ends at or before the watermark. Where the event time itself is a
key of GROUP BY, DISTINCT or a join, it drops a row whose time is not after the watermark. Such rows can be stored
before Spark sees them, if it is certain that only the stateful operator would use them: the query has one stateful
operator, reads every input once and passes the event time unchanged to the operator. In all other cases there is no
rule: Spark drops late rows itself, and only their count is known. Conditions that only Spark can evaluate apply later:
a row is late whether or not a WHERE would keep it.
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

    All in microseconds. A session is a window of `gap` that begins at any microsecond, a plain event time a window of
    length 0. A row is late if that end is not after the watermark.
    """

    size: int = 0
    slide: int = 1
    offset: int = 0

    def end(self, time: int) -> int:
        """The end of the last window of a row with this time."""
        return (time - self.offset) // self.slide * self.slide + self.offset + self.size

    def bound(self, watermark: int) -> int:
        """Rows before this time are late, all others are not: one comparison per row."""
        return self.offset + ((watermark - self.offset - self.size) // self.slide + 1) * self.slide


_EVENT_TIME = LateRule()


@dataclass(frozen=True)
class TimedInput:
    """An input of a query: its event-time column and, where known, all its columns."""

    column: str | None
    columns: Collection[str] | None = None


def late_rules(
    query: Query, inputs: Mapping[str, TimedInput], inlined: Mapping[str, Query] | None = None
) -> dict[str, LateRule]:
    """The rule of each input that has one. `inlined`: the queries of names that are not inputs."""
    queries = {name.lower(): part for name, part in (inlined or {}).items()}
    every = [query, *queries.values()]
    if any(_is_opaque(part) for part in every) or not _read_once(every):
        return {}
    operators = [(part, node) for part in every for node in _operators(part)]
    if len(operators) != 1:
        return {}
    names = {name.lower(): name for name in inputs}
    tracer = _EventTimeTracer(queries, {name.lower(): part for name, part in inputs.items()})
    return {names[name]: rule for name, rule in tracer.operator(operators[0][1]).items()}


def _is_opaque(query: Query) -> bool:
    """Whether rows may take paths that are not analysed here, or are counted before the operator."""
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
    """Whether no input, CTE or inlined flow is read twice: a row could take several paths."""
    uses: Counter[object] = Counter()
    for query in queries:
        for table in query.tree.find_all(exp.Table):
            if table.name and not table.db and table.find_ancestor(exp.Hint) is None:
                cte = cte_of(table)
                uses[table.name.lower() if cte is None else id(cte)] += 1
    return max(uses.values(), default=0) <= 1


def _operators(query: Query) -> Iterator[exp.Expr]:
    """The stateful operators: a SELECT that aggregates or is distinct, a UNION without ALL, a join of inputs."""
    for node in query.tree.find_all(exp.Select, exp.Union):
        if not query.reads_input(node):
            continue
        if is_distinct(node):
            yield node
        if isinstance(node, exp.Select) and (node.args.get("group") or aggregates(node)):
            yield node
    yield from (join for join in query.tree.find_all(exp.Join) if _joins_inputs(query, join))


def _joins_inputs(query: Query, join: exp.Join) -> bool:
    """Whether both sides of a join are streams; assumed for a join in brackets."""
    if not isinstance(join.parent, exp.Select):
        return True
    before = join.parent.args["joins"][: join.index]
    left = [join.parent.args.get("from_"), *(relation.this for relation in before)]
    return query.reads_input(join.this) and any(
        query.reads_input(relation) for relation in left if relation is not None
    )


@dataclass(frozen=True)
class _EventTimeTracer:
    """Traces the event time from the operator to the inputs."""

    inlined: Mapping[str, Query]
    inputs: Mapping[str, TimedInput]

    def operator(self, node: exp.Expr) -> dict[str, LateRule]:
        match node:
            case exp.Join():
                return self._join(node)
            case exp.Select() if node.args.get("group") or aggregates(node):
                rules_of_keys = [self._expression(key, node) for key in self._keys(node)]
            case exp.Query() if not _has_star(node):
                rules_of_keys = [self._output(node, index) for index in range(len(node.selects))]
            case exp.Select(expressions=[exp.Star() as star]) if not any(star.args.values()):
                rules_of_keys = [self._only_event_time(node)]
            case _:
                return {}
        timed = [rules for rules in rules_of_keys if rules]
        return timed[0] if len(timed) == 1 else {}

    def _keys(self, select: exp.Select) -> Iterator[exp.Expr]:
        """The grouping expressions; none if they are not certain."""
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
        """Whether the name is, or may be, a column of the inputs of the SELECT, which take precedence over aliases."""
        relations = _relations(select)
        return len(relations) != 1 or bool(select.args.get("laterals")) or self._may_have(relations[0], name.lower())

    def _may_have(self, relation: exp.Expr, name: str) -> bool:
        query = self._query_of(relation)
        if query is not None:
            return _has_star(query) or name in (selected.lower() for selected in query.named_selects)
        input_ = self.inputs.get(relation.name.lower()) if isinstance(relation, exp.Table) else None
        return input_ is None or input_.columns is None or name in (column.lower() for column in input_.columns)

    def _join(self, join: exp.Join) -> dict[str, LateRule]:
        """Spark drops by the event time of each side whose time is in the join condition."""
        select, condition = join.parent, join.args.get("on")
        if not isinstance(select, exp.Select) or condition is None:
            return {}
        rules_by_input: dict[str, LateRule] = {}
        for column in condition.find_all(exp.Column):
            rules = self._expression(column, select) if column.table else None
            # the time of the join is that of the row; windows on one side are left to Spark
            if rules and set(rules.values()) == {_EVENT_TIME}:
                rules_by_input |= rules
        return rules_by_input

    def _expression(self, expression: exp.Expr, select: exp.Select) -> dict[str, LateRule] | None:
        plain = expression.unalias().unnest()
        if isinstance(plain, exp.Column):
            return self._column(plain, select)
        if isinstance(plain, exp.Anonymous) and plain.name.lower() in ("window", "session_window"):
            rule = _window(plain)
            time = plain.expressions[0].unnest() if plain.expressions else None
            rules = self._column(time, select) if isinstance(time, exp.Column) else None
            if rule is not None and rules and set(rules.values()) == {_EVENT_TIME}:
                return dict.fromkeys(rules, rule)
        return None

    def _column(self, column: exp.Column, select: exp.Select) -> dict[str, LateRule] | None:
        relations = _relations(select)
        if len(column.parts) > 2 or isinstance(column.this, exp.Star):
            return None
        if column.table:
            named = [relation for relation in relations if relation.alias_or_name.lower() == column.table.lower()]
        else:
            named = relations if len(relations) == 1 else []
        return self._relation(named[0], column.name.lower()) if len(named) == 1 else None

    def _relation(self, relation: exp.Expr, name: str) -> dict[str, LateRule] | None:
        query = self._query_of(relation)
        if query is not None:
            return self._named(query, name)
        input_ = self.inputs.get(relation.name.lower()) if isinstance(relation, exp.Table) else None
        if input_ is None or input_.column is None or input_.column.lower() != name:
            return None
        return {relation.name.lower(): _EVENT_TIME}

    def _query_of(self, relation: exp.Expr) -> exp.Query | None:
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
        places = [i for i, item in enumerate(query.selects) if item.alias_or_name.lower() == name]
        if len(places) == 1 and not _has_star(query):
            return self._output(query, places[0])
        plain_star = len(query.selects) == 1 and isinstance(query.selects[0], exp.Star)
        if isinstance(query, exp.Select) and plain_star and not any(query.selects[0].args.values()):
            return self._column(exp.column(name), query)
        return None

    def _output(self, query: exp.Expr, index: int) -> dict[str, LateRule] | None:
        """The rules of the column at an index; all branches of a UNION must agree."""
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
        """The event time of the only input that a SELECT reads directly."""
        relations = _relations(select)
        input_ = self.inputs.get(relations[0].name.lower()) if len(relations) == 1 else None
        if input_ is None or input_.column is None or self._query_of(relations[0]) is not None:
            return None
        return self._relation(relations[0], input_.column.lower())


def _has_star(query: exp.Query) -> bool:
    return any(item.is_star for item in query.selects)


def _relations(select: exp.Select) -> list[exp.Expr]:
    """The relations of FROM and its joins; empty if some are in brackets."""
    clause = select.args.get("from_")
    relations = [clause.this] if clause is not None else []
    relations += [join.this for join in select.args.get("joins") or ()]
    return (
        [] if any(relation.args.get("joins") or relation.args.get("laterals") for relation in relations) else relations
    )


def _window(call: exp.Anonymous) -> LateRule | None:
    """The rule of `window(time, size[, slide[, offset]])` or `session_window(time, gap)` with literal lengths."""
    lengths = [_microseconds(argument) for argument in call.expressions[1:]]
    literal_lengths = [length for length in lengths if length is not None]
    if len(literal_lengths) < len(lengths) or not literal_lengths or literal_lengths[0] <= 0:
        return None
    if call.name.lower() == "session_window":
        return LateRule(size=literal_lengths[0]) if len(literal_lengths) == 1 else None
    size, slide, offset = [*literal_lengths, *[literal_lengths[0], 0][len(literal_lengths) - 1 :]][:3]
    return LateRule(size, slide, offset) if 0 < slide <= size and len(literal_lengths) <= 3 else None


def _microseconds(argument: exp.Expr) -> int | None:
    """A duration as a Spark string, e.g. '1 minute 30 seconds'; None for all other forms."""
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
