"""Translates a query with Dagger's SQL to Spark SQL."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.sql.dialect.rowtime import rowtime_edits
from headrace.sql.dialect.scope import DialectInput, QueryScope
from headrace.sql.dialect.values import dagger_edits, distinct_count_edits, time_part_edits, unnest_edits
from headrace.sql.dialect.windows import Windows
from headrace.sql.query import Query
from headrace.sql.tokens import TokenList

__all__ = ["DialectInput", "translate"]


def translate(query: Query, inputs: Mapping[str, DialectInput] | None = None, *, dagger: bool = False) -> Query:
    """The query in Spark SQL; the same object if there is nothing to translate.

    `inputs`: what is known of its streams and flows. With `dagger`, Dagger's meaning applies where both dialects accept
    the same text.
    """
    words = TokenList(query.sql, query.tokens)
    scope = QueryScope({name.lower(): input_ for name, input_ in (inputs or {}).items()})
    edits = [
        *Windows(query, words, scope).edits(),
        *rowtime_edits(query, scope),
        *time_part_edits(query, scope),
        *distinct_count_edits(query, words),
        *unnest_edits(query, words, scope),
        *(dagger_edits(query, words, scope) if dagger else ()),
    ]
    return query.edited(edits) if edits else query
