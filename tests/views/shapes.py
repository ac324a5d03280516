"""The shapes of queries that views are tried with, templates in shapes.sql over the tables of `made`.

`{a}` is a table in FROM, `{a.n}` its column of the role n; `{a2}` is the same table once more. `{k}` is the column that
all tables share. `{cmp}` and `{lit}` are a comparison and a small number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.views.generated_views import Table

# a name after two dashes, then its text; three dashes begin a chapter
_NAMED = re.compile(r"^-- (\w+)\n(.+?)\n(?=\n|\Z)", re.MULTILINE | re.DOTALL)
SHAPES = dict(_NAMED.findall(Path(__file__).with_name("shapes.sql").read_text(encoding="utf-8")))
# what Spark is asked where a view knows more than it
ANSWERS = {
    "tumble": "SELECT w.start, w.end, count(*), sum({n}) FROM (SELECT *, window({t}, '5 minutes') AS w FROM {A}) "
    "GROUP BY w",
    "hop": "SELECT {id}, w.start FROM (SELECT *, window({t}, '6 minutes', '2 minutes') AS w FROM {A})",
}

COMPARISONS = ("<", "<=", ">", ">=", "<>", "=")


@dataclass(frozen=True)
class Named:
    """A table under an alias: formatted it is an item of FROM, its attributes are columns."""

    table: Table
    alias: str
    shout: bool

    def __format__(self, spec: str) -> str:
        return f"`{self.table.name}` AS {self.alias}"

    def __getattr__(self, role: str) -> str:
        if role == "all":
            return ", ".join(getattr(self, one) for one in self.table.types)
        name = self.table.names[role]
        # names have no case in SQL
        return f"{self.alias}.`{name.swapcase() if self.shout else name}`"


def letters(shape: str) -> str:
    """The tables that a shape reads."""
    return "".join(one for one in "abc" if re.search(rf"{{{one}[.0-9}}]", SHAPES[shape].replace("{A}", "{a}")))


def filled(shape: str, tables: Mapping[str, Table], cmp: str, lit: int, shout: bool) -> tuple[str, str]:
    """The SQL of a shape over tables, and what Spark is asked instead if anything."""
    named = {letter: Named(table, letter, shout) for letter, table in tables.items()}
    twice = {f"{letter}2": Named(table, f"{letter}2", shout) for letter, table in tables.items()}
    first = tables["a"]
    bare = {role: f"`{first.names[role]}`" for role in ("id", "k", "n", "t")}
    values = {**named, **twice, **bare, "A": f"`{first.name}`", "cmp": cmp, "lit": lit}
    return SHAPES[shape].format(**values), ANSWERS.get(shape, "").format(**values)
