"""What a query reads of each input: the columns to decode, and simple conditions to apply while decoding.

The result is conservative. A column is dropped only if its name occurs nowhere in the text where it could mean that
column, so the remaining names mean the same to Spark. A row is dropped only if a WHERE directly over the input drops
it for certain.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from headrace.core.filters import ColumnFilter
from headrace.sql.query import Query, cte_of

# keywords after which a query may use columns it does not name
_IMPLICIT = {"natural", "pivot", "unpivot", "table", "identifier", "match_recognize", "|>"}
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class InputReads:
    """The columns and filters of one input."""

    columns: tuple[str, ...] | None
    """The columns it uses; None for all."""
    filters: tuple[ColumnFilter, ...] = ()


def input_reads(
    query: Query, schemas: Mapping[str, pa.Schema], keep: Mapping[str, str] | None = None
) -> dict[str, InputReads]:
    """The reads of each input. `keep`: per input, a column that must not be filtered early."""
    used = None if _uses_all(query) else _names_used(query, schemas)
    result = {}
    for name, schema in schemas.items():
        columns = None if used is None else tuple(c for c in schema.names if _is_used(c, used[name], query.sql))
        result[name] = InputReads(columns, _filters(query, name, schema, (keep or {}).get(name)))
    return result


def _is_used(column: str, names: set[str], text: str) -> bool:
    if _PLAIN_NAME.fullmatch(column):
        return column.lower() in names
    # other names need back quotes; outside ASCII, Spark may fold case differently
    return not column.isascii() or column.lower().replace("`", "``") in text.lower()


def _uses_all(query: Query) -> bool:
    if any(token.text.lower() in _IMPLICIT for token in query.tokens if token.token_type is not TokenType.STRING):
        return True
    return any(not isinstance(star.parent, exp.Count) for star in query.tree.find_all(exp.Star))


def _names_used(query: Query, schemas: Mapping[str, pa.Schema]) -> dict[str, set[str]]:
    """Per input, the lower-case names that may refer to one of its columns."""
    used: dict[str, set[str]] = {name: set() for name in schemas}
    relations = _relations(query, schemas)
    columns = {column.lower() for schema in schemas.values() for column in schema.names}
    for chain in _chains(query.tokens):
        first = chain[0]
        for names in used.values():
            names.add(first)
        if first in relations:
            for name in relations[first]:
                used[name].update(chain[1:2])
        elif first not in columns:  # neither an input nor a column: a field of something, or unknown
            for names in used.values():
                names.update(chain[1:])
    return used


def _relations(query: Query, schemas: Mapping[str, pa.Schema]) -> dict[str, set[str]]:
    """The inputs that a qualifier may refer to; none for a CTE or subquery, whose inner names count."""
    inputs = {name.lower(): name for name in schemas}
    inputs_of: dict[str, set[str]] = {}
    for alias in query.tree.find_all(exp.TableAlias):
        inputs_of.setdefault(alias.name.lower(), set())
    for table in query.tree.find_all(exp.Table):
        name = inputs.get(table.name.lower())
        for word in (table.name.lower(), table.alias_or_name.lower()):
            inputs_of.setdefault(word, set())
            if name is not None and cte_of(table) is None:
                inputs_of[word].add(name)
    return inputs_of


def _chains(tokens: tuple[Token, ...]) -> Iterator[list[str]]:
    """Dotted names in lower case: `o.driver.name` gives [o, driver, name]. A name after AS is new, not a use."""
    index = 0
    while index < len(tokens):
        start = index
        chain = [tokens[index].text.lower()]
        while index + 2 < len(tokens) and tokens[index + 1].token_type is TokenType.DOT:
            index += 2
            chain.append(tokens[index].text.lower())
        index += 1
        if tokens[start].token_type is TokenType.STRING:
            continue
        if start and tokens[start - 1].token_type is TokenType.ALIAS:
            continue
        yield chain


def _filters(query: Query, name: str, schema: pa.Schema, keep: str | None) -> tuple[ColumnFilter, ...]:
    """Conditions on one input that all rows of the result fulfil.

    Valid for any kind of join: no condition is true for null, so the same WHERE drops a row of the other side that
    loses its match.
    """
    tables = [table for table in query.inputs if table.name.lower() == name.lower()]
    if len(tables) != 1 or any(token.text == "|>" for token in query.tokens):
        return ()
    table = tables[0]
    select = _select_over(table)
    where = select.args.get("where") if select is not None else None
    if select is None or where is None:
        return ()
    alone = not select.args.get("joins") and not select.args.get("laterals")
    filters = []
    for condition in _conjuncts(where.this):
        field = _field_in(condition, table, schema, alone)
        if field is None or field.name.lower() == (keep or "").lower():
            continue
        filter_ = ColumnFilter.from_sql(condition, field)
        if filter_ is not None and not _depends_on_escapes(filter_, query):
            filters.append(filter_)
    return tuple(dict.fromkeys(filters))


def _select_over(table: exp.Table) -> exp.Select | None:
    """The SELECT whose FROM or JOIN contains the table, without sampling, pivot or time travel."""
    if any(table.args.get(key) for key in ("sample", "pivots", "version", "when", "joins", "laterals")):
        return None
    clause = table.parent
    select = clause.parent if isinstance(clause, exp.From | exp.Join) else None
    return select if isinstance(select, exp.Select) else None


def _field_in(condition: exp.Expr, table: exp.Table, schema: pa.Schema, alone: bool) -> pa.Field | None:
    """The only column of a condition, if it belongs to the table."""
    columns = list(condition.find_all(exp.Column))
    if len(columns) != 1 or isinstance(columns[0].this, exp.Star):
        return None
    *qualifiers, name = [part.name.lower() for part in columns[0].parts]
    alias = table.alias_or_name.lower()
    names = [field.name.lower() for field in schema]
    if qualifiers not in ([alias], [] if alone else [alias]) or names.count(name) != 1:
        return None
    if qualifiers and alias in names:
        return None  # `o.status` could be a field of the column `o`
    return schema.field(names.index(name))


def _depends_on_escapes(filter_: ColumnFilter, query: Query) -> bool:
    """Spark and sqlglot read backslashes and doubled quotes in strings differently."""
    return "\\" in query.sql and any(isinstance(value, str) for value in filter_.values)


def _conjuncts(condition: exp.Expr) -> Iterator[exp.Expr]:
    if isinstance(condition, exp.And):
        yield from _conjuncts(condition.left)
        yield from _conjuncts(condition.right)
    elif isinstance(condition, exp.Paren):
        yield from _conjuncts(condition.this)
    else:
        yield condition
