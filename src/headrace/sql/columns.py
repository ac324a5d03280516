"""Finds columns that no input has. Only certain errors are reported; Spark reports the others."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pyarrow as pa
from sqlglot import exp

from headrace.core.errors import did_you_mean
from headrace.sql.query import Query, SqlError, cte_of

# names that Spark resolves although no input has them
_SPARK_NAMES = {"window", "session_window", "grouping__id", "_metadata"} | {
    "current_date", "current_timestamp", "current_time", "current_user", "current_catalog", "current_database",
    "current_schema", "current_timezone", "localtimestamp", "now", "user", "session_user", "all", "default",
    "year", "quarter", "month", "week", "day", "dayofyear", "hour", "minute", "second", "millisecond", "microsecond",
}  # fmt: skip
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# functions and clauses whose columns only Spark knows
_OPAQUE = {
    "explode", "explode_outer", "posexplode", "posexplode_outer", "inline", "inline_outer", "stack", "json_tuple",
    "variant_explode", "variant_explode_outer", "pivot", "unpivot", "lateral", "values", "table", "identifier",
    "transform_with_state", "|>",
}  # fmt: skip


def unknown_columns(query: Query, schemas: Mapping[str, pa.Schema]) -> list[SqlError]:
    """One error per column that neither an input nor the query itself defines."""
    inputs = {name.lower(): name for name in schemas}
    if not _transparent(query, set(inputs)):
        return []
    relations = _relations(query, inputs)
    declared = _declared(query)
    columns = {name: {column.lower() for column in schema.names} for name, schema in schemas.items()}
    errors = []
    for column in query.tree.find_all(exp.Column, bfs=False):
        if isinstance(column.this, exp.Star) or column.find_ancestor(exp.Hint):
            continue
        first, *others = [part.name for part in column.parts]
        qualified = bool(others) and first.lower() in relations
        name = others[0] if qualified else first
        candidates = relations[first.lower()] if qualified else set(schemas)
        known = set().union(*(columns[c] for c in candidates or schemas))
        if not candidates or not qualified:
            known |= declared | _SPARK_NAMES
        elif any(first.lower() in names for names in columns.values()):
            continue  # may be a field of a column named like the input
        if name.lower() not in known and _PLAIN_NAME.fullmatch(name):
            errors.append(_unknown(query, column, name, {c: schemas[c] for c in sorted(candidates or schemas)}))
    return errors


def _transparent(query: Query, inputs: set[str]) -> bool:
    """Whether all visible columns are those of known inputs or defined in the query."""
    if any(token.text.lower() in _OPAQUE for token in query.tokens):
        return False
    for table in query.tree.find_all(exp.Table):
        if table.find_ancestor(exp.Hint) is not None or cte_of(table) is not None:
            continue
        if table.db or table.name.lower() not in inputs:
            return False
    relations = {alias.name.lower() for alias in query.tree.find_all(exp.TableAlias)} | inputs
    stars = [c for c in query.tree.find_all(exp.Column) if isinstance(c.this, exp.Star)]
    return all(len(star.parts) == 2 and star.parts[0].name.lower() in relations for star in stars)


def _relations(query: Query, inputs: Mapping[str, str]) -> dict[str, set[str]]:
    """The inputs of a qualifier; empty for a CTE or subquery."""
    inputs_of: dict[str, set[str]] = {}
    for table in query.inputs:
        inputs_of.setdefault(table.alias_or_name.lower(), set()).add(inputs[table.name.lower()])
    plain = {id(table.args.get("alias")) for table in query.inputs}
    for alias in query.tree.find_all(exp.TableAlias):
        if id(alias) not in plain:
            inputs_of[alias.name.lower()] = set()
    return inputs_of


def _declared(query: Query) -> set[str]:
    """All names the query defines, and fields it selects from structs: they are columns of subqueries."""
    names = {
        identifier.name.lower()
        for identifier in query.tree.find_all(exp.Identifier)
        if not isinstance(identifier.parent, exp.Column)
    }
    fields = {column.name.lower() for column in query.tree.find_all(exp.Column) if len(column.parts) > 1}
    return names | fields


def _unknown(query: Query, column: exp.Column, name: str, schemas: Mapping[str, pa.Schema]) -> SqlError:
    inputs = " and ".join(f"'{s}'" for s in schemas)
    names = [field.name for schema in schemas.values() for field in schema if not field.name.startswith("_")]
    hint = did_you_mean(name, names, f"columns of {inputs}")
    return query.error_at(column, "unknown-column", f"there is no column '{name}' in {inputs}", hint)
