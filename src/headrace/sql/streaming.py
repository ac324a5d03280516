"""The state of a streaming query, and the constructs that Spark cannot run, or runs wrongly, on streams."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from sqlglot import exp

from headrace.sql.query import Query, SqlError, cte_of

_BATCH = "or use mode: batch"
_ORDERINGS = {"order": "ORDER BY", "sort": "SORT BY", "cluster": "CLUSTER BY"}
_LIMITS = {"limit": "LIMIT", "offset": "OFFSET"}


def state_of(query: Query) -> tuple[str, ...]:
    """The kinds of state the query needs: aggregate, join, distinct."""
    selects = list(query.tree.find_all(exp.Select))
    kinds = []
    if any(select.args.get("group") or aggregates(select) for select in selects):
        kinds.append("aggregate")
    if any(isinstance(join.this, exp.Table | exp.Subquery) for join in query.tree.find_all(exp.Join)):
        kinds.append("join")
    if any(is_distinct(node) for node in query.tree.find_all(exp.Select, exp.Union)):
        kinds.append("distinct")
    return tuple(kinds)


def is_distinct(node: exp.Expr) -> bool:
    """Whether a SELECT or UNION drops duplicate rows."""
    return bool(node.args.get("distinct"))


def aggregates(select: exp.Select) -> bool:
    """Whether a SELECT itself aggregates: not in a subquery, a window function or a lambda."""
    parts = [*select.expressions, *(select.args[key] for key in ("having", "qualify") if select.args.get(key))]
    return any(
        node.find_ancestor(exp.Select) is select and not node.find_ancestor(exp.Window, exp.Lambda)
        for part in parts
        for node in part.find_all(exp.AggFunc)
    )


def refusals(query: Query) -> list[SqlError]:
    """Errors for constructs that streams do not support, with the reason and an alternative."""
    errors = [
        *_set_operations(query),
        *_orderings(query),
        *_row_windows(query),
        *_subqueries(query),
        *_distinct_aggregates(query),
        *_anti_joins(query),
        *_samples(query),
    ]
    return sorted(errors, key=lambda error: (error.line, error.offset or 0))


def _refused(query: Query, node: exp.Expr, message: str, hint: str) -> SqlError:
    return query.error_at(node, "sql-not-streamable", message, f"{hint}, {_BATCH}")


def _set_operations(query: Query) -> Iterator[SqlError]:
    for node in query.tree.find_all(exp.Except, exp.Intersect):
        if query.reads_input(node):
            message = f"{node.key.upper()} of streams has no defined result: rows may leave it again later"
            yield _refused(query, node, message, "use a LEFT JOIN with a time bound and keep the rows without a match")


def _orderings(query: Query) -> Iterator[SqlError]:
    for node in query.tree.find_all(exp.Query):
        for key, words in (_ORDERINGS | _LIMITS).items():
            clause = node.args.get(key)
            if clause is None or not query.reads_input(node):
                continue
            reason = "needs the end of the data, and a stream has none"
            if key in _LIMITS:
                reason = "counts from the first row of the stream: it would return those rows and then none"
            yield _refused(query, clause, f"{words} {reason}", "remove it")


def _row_windows(query: Query) -> Iterator[SqlError]:
    for node in query.tree.find_all(exp.Window):
        select = node.find_ancestor(exp.Select)
        if node.arg_key != "windows" and select is not None and query.reads_input(select):
            message = "OVER (…) compares rows with rows that have not arrived yet"
            yield _refused(query, node, message, "group by window(time, '10 seconds') instead")


def _subqueries(query: Query) -> Iterator[SqlError]:
    """Queries used as values or conditions; those in FROM, JOIN, WITH and UNION are relations."""
    for node in query.tree.find_all(exp.Select):
        holder: exp.Expr | None = node.parent
        while isinstance(holder, exp.Subquery | exp.SetOperation):
            holder = holder.parent
        if holder is None or isinstance(holder, exp.From | exp.Join | exp.CTE | exp.Lateral | exp.With):
            continue
        if query.reads_input(node):
            yield _refused(query, node, "Spark does not allow a stream inside an expression", "write it as a JOIN")


def _distinct_aggregates(query: Query) -> Iterator[SqlError]:
    for node in query.tree.find_all(exp.Distinct):
        select = node.find_ancestor(exp.Select)
        if not isinstance(node.parent, exp.Query) and select is not None and query.reads_input(select):
            message = "an aggregate over DISTINCT values needs all values in every batch"
            yield _refused(query, node, message, "use approx_count_distinct(x) or collect_set(x)")


def _anti_joins(query: Query) -> Iterator[SqlError]:
    for join in query.tree.find_all(exp.Join):
        if join.kind.upper() == "ANTI" and query.reads_input(join.this):
            message = "LEFT ANTI JOIN with a stream: a row may still get a match later"
            yield _refused(query, join, message, "use a LEFT JOIN with a time bound and keep the rows without a match")


def _samples(query: Query) -> Iterator[SqlError]:
    for table in query.inputs:
        if table.args.get("sample"):
            yield _refused(query, table, "a stream cannot be sampled", "filter on a hash: WHERE hash(id) % 10 = 0")


def output_refusals(query: Query, output: str, event_columns: Collection[str]) -> list[SqlError]:
    """Errors for the flow's output mode, as far as they are certain without looking into other flows.

    `event_columns` are the event-time columns of the streams it reads.
    """
    errors = _append_refusals(query, event_columns) if output == "append" else _update_refusals(query)
    return sorted(errors, key=lambda error: (error.line, error.offset or 0))


def _append_refusals(query: Query, event_columns: Collection[str]) -> Iterator[SqlError]:
    hint = "group by window(time, '10 seconds') over a stream with event_time, use output: update"
    for node in query.tree.find_all(exp.Select, exp.Union):
        if not query.reads_input(node):
            continue
        grouped = isinstance(node, exp.Select) and (node.args.get("group") or aggregates(node))
        if grouped and not _may_be_keyed_by_time(node, event_columns):
            message = "output: append returns only final groups, and these are never final"
            yield query.error_at(node, "sql-needs-watermark", message, f"{hint}, {_BATCH}")
        elif is_distinct(node) and not event_columns:
            message = "DISTINCT without event time must store every row forever"
            yield query.error_at(node, "sql-needs-watermark", message, f"give the stream an event_time, {_BATCH}")
    for join in [] if event_columns else _outer_joins(query):
        message = f"{join.side.upper()} JOIN of streams without event time never knows that a row has no match"
        yield query.error_at(join, "sql-needs-watermark", message, f"give both streams an event_time, {_BATCH}")


def _outer_joins(query: Query) -> Iterator[exp.Join]:
    """Outer joins with an input on both sides."""
    for join in query.tree.find_all(exp.Join):
        outer = join.side.upper() in ("LEFT", "RIGHT", "FULL") and join.kind.upper() not in ("SEMI", "ANTI")
        select = join.parent
        left = select.args.get("from_") if select is not None else None
        if outer and left is not None and query.reads_input(join.this) and query.reads_input(left):
            yield join


def _may_be_keyed_by_time(select: exp.Expr, event_columns: Collection[str]) -> bool:
    group = select.args.get("group")
    if group is None or not event_columns:
        return False
    relations = [select.args["from_"].this] if select.args.get("from_") else []
    relations += [join.this for join in select.args.get("joins") or ()]
    if any(not isinstance(relation, exp.Table) or cte_of(relation) is not None for relation in relations):
        return True  # the subquery may provide the event time
    time_columns = {name.lower() for name in event_columns}
    # ordinals and aliases refer to the SELECT list, so it counts too
    used_columns = {column.name.lower() for column in select.find_all(exp.Column)}
    return bool(time_columns & used_columns)


def _update_refusals(query: Query) -> Iterator[SqlError]:
    for join in _outer_joins(query):
        message = f"{join.side.upper()} JOIN of streams cannot retract a row that it returned without a match"
        yield query.error_at(join, "sql-not-streamable", message, "use output: append")
    for node in query.tree.find_all(exp.Anonymous):
        select = node.find_ancestor(exp.Select)
        if node.name.lower() == "session_window" and select is not None and select.args.get("group"):
            message = "sessions grow and merge: their rows cannot be updated one by one"
            yield query.error_at(node, "sql-not-streamable", message, "use output: append")
