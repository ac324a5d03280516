"""Fragments of Spark SQL for the delta rules. Every query returns weighted rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.core.schema import quoted
from headrace.core.tables import WEIGHT

SMALL_BATCH = 50_000
"""A batch of up to this many changed rows is small: the delta is broadcast to the large relations."""


def column_list(names: Iterable[str], alias: str = "") -> list[str]:
    return [f"{alias}.{quoted(name)}" if alias else quoted(name) for name in names]


def select(columns: Sequence[str], source: str, rest: str = "", hint: str = "") -> str:
    """SELECT … FROM; a source that is a query is put in brackets."""
    return f"SELECT {hint}{', '.join(columns)} FROM {_from_item(source)}{' ' + rest if rest else ''}"


def _from_item(source: str) -> str:
    return f"({source})" if " " in source else source


def union_all(queries: Iterable[str | None]) -> str | None:
    """UNION ALL of the queries; None stands for no rows."""
    present = [query for query in queries if query is not None]
    return " UNION ALL ".join(present) if present else None


def broadcast_hint(alias: str, small: bool) -> str:
    """Hint: this side is small. Spark cannot know it."""
    return f"/*+ BROADCAST({alias}) */ " if small else ""


def hash_join_hint(alias: str) -> str:
    """Hint: this side is small and already in the joining task, so no broadcast is needed."""
    return f"/*+ SHUFFLE_HASH({alias}) */ "


def in_one_task(query: str) -> str:
    """Reads and groups a few rows in a single task: a shuffle takes longer."""
    return select(["*"], query, hint="/*+ COALESCE(1) */ ")


def negate(columns: Sequence[str], query: str) -> str:
    """The rows with negated weights."""
    return select([*column_list(columns), f"-{WEIGHT} AS {WEIGHT}"], query)


def empty_rows(types: Mapping[str, str]) -> str:
    """An empty relation with these columns."""
    columns = [f"CAST(NULL AS {kind}) AS {quoted(name)}" for name, kind in types.items()]
    return f"SELECT {', '.join([*columns, f'CAST(0 AS BIGINT) AS {WEIGHT}'])} WHERE false"


@dataclass(frozen=True)
class KeyMatch:
    """A column of a relation and the column of values it is compared with. With `nulls`, two nulls are equal."""

    column: str
    value: str
    nulls: bool = True


@dataclass(frozen=True)
class Restriction:
    """Restricts a relation to the rows whose columns have the values of one row of `values`."""

    values: str
    matches: tuple[KeyMatch, ...]
    small: bool

    def through(self, names: Mapping[str, str]) -> Restriction | None:
        """The restriction of an input with other column names, by the columns it has; None if it has none."""
        renamed = tuple(replace(key, column=names[key.column]) for key in self.matches if key.column in names)
        return replace(self, matches=renamed) if renamed else None

    def covers(self, other: Restriction | None) -> bool:
        """Whether `other`, a part of this restriction, compares all its columns."""
        return other is not None and len(other.matches) == len(self.matches)


def restrict(query: str | None, restriction: Restriction | None) -> str | None:
    """The rows within the restriction. Duplicate values are harmless: it is a semi join."""
    if query is None or restriction is None:
        return query
    same = " AND ".join(
        f"x.{quoted(key.column)} {'<=>' if key.nulls else '='} v.{quoted(key.value)}" for key in restriction.matches
    )
    hint = broadcast_hint("v", restriction.small)
    return f"SELECT {hint}x.* FROM {_from_item(query)} x LEFT SEMI JOIN ({restriction.values}) v ON {same}"
