"""The column `rowtime`: the event time of a stream under Dagger's name."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from headrace.core.schema import quoted
from headrace.sql.dialect.scope import QueryScope, RowtimeMeaning, identifiers, relations
from headrace.sql.query import Query
from headrace.sql.text_edits import Edit

_HINT = "declare one in headrace.yaml, e.g. event_time: event_timestamp"


def rowtime_edits(query: Query, scope: QueryScope) -> Iterator[Edit]:
    """Replace `rowtime` by the event-time column."""
    for column in query.tree.find_all(exp.Column):
        parts = identifiers(column)
        if not 0 < len(parts) <= 2:
            continue
        meaning = _meaning(query, column, parts, scope)
        if meaning is None:
            continue
        if meaning.column is None:
            message = f"'{parts[-1].name}' is the event time, and stream '{meaning.stream}' has none"
            raise query.error_at(column, "dagger-rowtime", message, _HINT)
        place = parts[-1].meta
        item = isinstance(column.parent, exp.Select) and column.arg_key == "expressions"
        name = f" AS {quoted(parts[-1].name)}" if item else ""
        yield Edit(int(place["start"]), int(place["end"]) + 1, quoted(meaning.column) + name)


def _meaning(query: Query, column: exp.Column, parts: list[exp.Identifier], scope: QueryScope) -> RowtimeMeaning | None:
    """The meaning of a name in its SELECT or the SELECTs around it."""
    name = parts[-1].name.lower()
    select = column.find_ancestor(exp.Select)
    while select is not None:
        alias = parts[0].name.lower() if len(parts) == 2 else None
        candidates = [relation for name_in_query, relation in relations(select) if alias in (None, name_in_query)]
        meanings = [meaning for relation in candidates if (meaning := scope.rowtime(relation, name)) is not None]
        if len(meanings) > 1:
            aliases = [name_in_query for name_in_query, _ in relations(select)]
            hint = f"write {' or '.join(f'{alias_}.{parts[-1].name}' for alias_ in aliases)}"
            raise query.error_at(
                column, "dagger-rowtime", f"'{parts[-1].name}' is ambiguous: several inputs have it", hint
            )
        if meanings or (candidates and alias is not None):
            return meanings[0] if meanings else None
        select = select.find_ancestor(exp.Select)
    return None
