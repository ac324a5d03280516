"""The column `rowtime`: the event time of a stream, whatever it is called there."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from headrace.core.schema import quoted
from headrace.sql.dialect.scope import QueryScope, RowtimeMeaning, identifiers, relations
from headrace.sql.query import Query
from headrace.sql.text_edits import Edit

_HINT = "give it one in headrace.yaml, e.g. event_time: event_timestamp"


def rowtime_edits(query: Query, scope: QueryScope) -> Iterator[Edit]:
    """The event-time column instead of its other name."""
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
    """What a name means in the SELECT it stands in, or in those around it."""
    name = parts[-1].name.lower()
    select = column.find_ancestor(exp.Select)
    while select is not None:
        alias = parts[0].name.lower() if len(parts) == 2 else None
        seen = [one for known, one in relations(select) if alias in (None, known)]
        found = [meaning for one in seen if (meaning := scope.rowtime(one, name)) is not None]
        if len(found) > 1:
            aliases = [known for known, _ in relations(select)]
            hint = f"say whose: {' or '.join(f'{one}.{parts[-1].name}' for one in aliases)}"
            raise query.error_at(column, "dagger-rowtime", f"'{parts[-1].name}' may be that of several inputs", hint)
        if found or (seen and alias is not None):
            return found[0] if found else None
        select = select.find_ancestor(exp.Select)
    return None
