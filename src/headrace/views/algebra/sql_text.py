"""Small pieces of Spark SQL that the rules of views are written with. Every text gives weighted rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.core.schema import quoted
from headrace.core.tables import WEIGHT

SMALL_BATCH = 50_000
"""Up to so many changed rows a batch is small: they are sent to where the large relations are, not the other way."""


def column_list(names: Iterable[str], of: str = "") -> list[str]:
    """The columns as SQL names them."""
    return [f"{of}.{quoted(name)}" if of else quoted(name) for name in names]


def select(what: Sequence[str], source: str, rest: str = "", hint: str = "") -> str:
    """One query; what it reads is put in brackets unless it is a name."""
    return f"SELECT {hint}{', '.join(what)} FROM {_from_item(source)}{' ' + rest if rest else ''}"


def _from_item(text: str) -> str:
    return f"({text})" if " " in text else text


def union_all(texts: Iterable[str | None]) -> str | None:
    """The rows of all that have any."""
    given = [text for text in texts if text is not None]
    return " UNION ALL ".join(given) if given else None


def broadcast_hint(alias: str, small: bool) -> str:
    """Says that the rows of this alias are few, which Spark cannot know."""
    return f"/*+ BROADCAST({alias}) */ " if small else ""


def hash_join_hint(alias: str) -> str:
    """Says that the rows of this alias are few, and that the task that joins them has them all: nobody sends them."""
    return f"/*+ SHUFFLE_HASH({alias}) */ "


def in_one_task(text: str) -> str:
    """Has few rows read and grouped by a single task: to hand them over to others takes longer."""
    return select(["*"], text, hint="/*+ COALESCE(1) */ ")


def negate(columns: Sequence[str], text: str) -> str:
    """What takes rows back."""
    return select([*column_list(columns), f"-{WEIGHT} AS {WEIGHT}"], text)


def empty_rows(types: Mapping[str, str]) -> str:
    """No rows, of these columns."""
    columns = [f"CAST(NULL AS {kind}) AS {quoted(name)}" for name, kind in types.items()]
    return f"SELECT {', '.join([*columns, f'CAST(0 AS BIGINT) AS {WEIGHT}'])} WHERE false"


@dataclass(frozen=True)
class KeyMatch:
    """A column of a relation, and the column of the values that it is compared with. With `nulls`, two are equal."""

    column: str
    value: str
    nulls: bool = True


@dataclass(frozen=True)
class Restriction:
    """Of a relation only those rows are wanted whose columns have the values of one of these rows."""

    values: str
    wanted: tuple[KeyMatch, ...]
    small: bool

    def through(self, names: Mapping[str, str]) -> Restriction | None:
        """The same of an input whose columns have other names; of those columns that it has."""
        known = tuple(replace(one, column=names[one.column]) for one in self.wanted if one.column in names)
        return replace(self, wanted=known) if known else None

    def covers(self, other: Restriction | None) -> bool:
        """Whether nothing is left to be compared when the other was."""
        return other is not None and len(other.wanted) == len(self.wanted)


def restrict(text: str | None, within: Restriction | None) -> str | None:
    """The wanted rows. A value that is there twice does no harm."""
    if text is None or within is None:
        return text
    same = " AND ".join(
        f"x.{quoted(one.column)} {'<=>' if one.nulls else '='} v.{quoted(one.value)}" for one in within.wanted
    )
    return f"SELECT {broadcast_hint('v', within.small)}x.* FROM {_from_item(text)} x LEFT SEMI JOIN ({within.values}) v ON {same}"
