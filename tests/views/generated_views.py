"""Random tables and random changes of them, for the properties of views.

A change is drawn as an intention (`Op`: "delete some row of b"), and made real against the rows that are there. So any
part of a sequence may be left out and the rest still makes sense: that is what lets hypothesis find a small example.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

Row = tuple[Any, ...]
Change = tuple[Any, ...]
"""("I", table, row), ("U", table, old, new) or ("D", table, row), as ViewHarness takes it."""

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = date(2026, 2, 28)
# few values, so that rows meet; the first is what an example shrinks to
VALUES: dict[str, list[Any]] = {
    "bigint": [1, 2, 3, 0, -1, 5_000_000_000],
    "int": [1, 2, 3, 0, -1],
    "decimal(10,2)": [Decimal("1.00"), Decimal("2.50"), Decimal("3.00"), Decimal("0.00"), Decimal("-1.25")],
    "double": [1.0, 2.5, 0.0, -0.0, float("nan"), 0.1, -3.0],
    "string": ["a", "b", "", "A", "é'\\`"],
    "boolean": [True, False],
    "date": [DAY, DAY + timedelta(days=1), DAY - timedelta(days=60)],
    "timestamp": [NOON + timedelta(minutes=m) for m in (0, 3, 5, 11)] + [NOON + timedelta(microseconds=1)],
}
NUMBERS = ("bigint", "int", "decimal(10,2)")
# types that are compared with each other
ALIKE = (("bigint", "int"), ("string",), ("decimal(10,2)", "bigint"), ("double",), ("date",), ("timestamp",))
NAMES = ("{role}_{letter}", "{role} {letter}", "{role}-of-{letter}", "Order{role}{letter}")


@dataclass(frozen=True)
class Table:
    """A table with a column for each role.

    `id` and `p` are parts of keys, `k` is for joins, `g` for groups and of any type, `n` is an exact number; `x`, `s`,
    `f`, `d` and `t` are a double, a string, a flag, a date and a time.
    """

    name: str
    types: Mapping[str, str]
    """By role."""
    names: Mapping[str, str]
    """By role."""
    key: tuple[str, ...]
    """Roles."""

    @property
    def spec(self) -> dict[str, Any]:
        """As ViewHarness takes it."""
        columns = {self.names[role]: kind for role, kind in self.types.items()}
        return {"key": [self.names[role] for role in self.key], "columns": columns}

    def rows(self) -> st.SearchStrategy[Row]:
        return st.tuples(*(self._values(role, kind) for role, kind in self.types.items()))

    def _values(self, role: str, kind: str) -> st.SearchStrategy[Any]:
        values = VALUES[kind] if role != "id" else IDS[kind]
        return st.sampled_from(values if role in ("id", "p") else [*values[:2], None, *values[2:]])

    def key_of(self, row: Row) -> Row:
        return tuple(value for role, value in zip(self.types, row, strict=True) if role in self.key)

    def mixed(self, old: Row, new: Row, roles: Sequence[str]) -> Row:
        """The old row with some columns of the new one."""
        return tuple(n if r in roles else o for r, o, n in zip(self.types, old, new, strict=True))


IDS: dict[str, list[Any]] = {"bigint": list(range(12)), "int": list(range(12)), "string": list("abcdefghijkl")}


@st.composite
def tables(draw: st.DrawFn) -> dict[str, Table]:
    """Three tables, by letter. The column `k` has the same name in all: it is what USING takes."""
    alike = draw(st.sampled_from(ALIKE))
    joins = draw(st.sampled_from(["k", "Join Key"]))
    made = {}
    for letter in "abc":
        form = draw(st.sampled_from(NAMES))
        types = {
            "id": draw(st.sampled_from(list(IDS))),
            "p": "int",
            "k": draw(st.sampled_from(alike)),
            "g": draw(st.sampled_from(list(VALUES))),
            "n": draw(st.sampled_from(NUMBERS)),
            "x": "double",
            "s": "string",
            "f": "boolean",
            "d": "date",
            "t": "timestamp",
        }
        names = {role: form.format(role=role, letter=letter) for role in types} | {"k": joins}
        key = draw(st.sampled_from([("id",), ("id", "p"), ()]))
        made[letter] = Table(f"table_{letter}", types, names, key)
    return made


@dataclass(frozen=True)
class Op:
    """What is meant to happen to a table; `pick` says to which row (and to which column)."""

    what: str
    letter: str
    pick: int
    row: Row


def changed(table: Table, op: Op) -> list[str]:
    """The roles of the columns that an update sets."""
    others = [role for role in table.types if role not in table.key]
    match op.what:
        case "touch":
            return [others[op.pick % len(others)]]
        case "rejoin":
            return ["k"]
        case "rekey":
            return list(table.key or ("id",))
    return others


WHATS = ("insert", "delete", "touch", "rejoin", "update", "rekey", "again", "copy", "clear")
LIKELY = ("insert", "insert", "delete", "delete", "touch", "touch", "rejoin", "rejoin", "update", *WHATS[5:])


@st.composite
def ops(draw: st.DrawFn, made: Mapping[str, Table], letters: str, whats: Sequence[str]) -> Op:
    letter = draw(st.sampled_from(letters))
    return Op(draw(st.sampled_from(whats)), letter, draw(st.integers(0, 11)), draw(made[letter].rows()))


@dataclass(frozen=True)
class Case:
    """Tables, and what happens to them, batch by batch."""

    tables: Mapping[str, Table]
    batches: tuple[tuple[Op, ...], ...]
    restarts: tuple[int, ...] = ()
    """Batches before which the view is made anew from what it kept."""

    def changes(self) -> list[list[Change]]:
        world = World(self.tables)
        return [world.batch(ops) for ops in self.batches]


def several(draw: st.DrawFn, one: st.SearchStrategy[Op], fewest: int, most: int) -> tuple[Op, ...]:
    """Any number of them, all numbers as likely; `st.lists` prefers short ones."""
    return tuple(draw(one) for _ in range(draw(st.integers(fewest, most))))


@st.composite
def cases(draw: st.DrawFn, letters: str = "abc") -> Case:
    """A first load, then a few batches of changes. `letters`: the tables that the query reads."""
    # hypothesis tries the smallest example first: with few examples to spend it must be another one
    draw(st.integers(0, 255).filter(bool))
    made = draw(tables())
    size = 6 * len(letters)
    first = several(draw, ops(made, letters, ("insert", "insert", "insert", "copy")), size // 2, size)
    some = ops(made, letters, LIKELY)
    batches = [several(draw, some, 0, size) for _ in range(draw(st.integers(1, 3)))]
    restarts = draw(st.sampled_from([(), (), (), (1,)]))
    return Case({letter: made[letter] for letter in letters}, (first, *batches), restarts)


@dataclass
class World:
    """The rows of all tables."""

    tables: Mapping[str, Table]
    rows: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))
    gone: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))

    def batch(self, ops: Sequence[Op]) -> list[Change]:
        return [change for op in ops for change in self._changes(op)]

    def _changes(self, op: Op) -> Iterator[Change]:
        table, there, gone = self.tables[op.letter], self.rows[op.letter], self.gone[op.letter]
        some = op.pick % len(there) if there else None
        match op.what:
            case "insert":
                yield from self._put(op.letter, op.row)
            case "again" if gone:
                yield from self._put(op.letter, gone[op.pick % len(gone)])
            case "copy" if some is not None:
                yield from self._put(op.letter, table.mixed(there[some], op.row, table.key))
            case "clear":
                while there:
                    yield self._remove(op.letter, 0)
            case "delete" if some is not None:
                yield self._remove(op.letter, some)
            case "update" | "touch" | "rejoin" | "rekey" if some is not None:
                yield from self._update(op.letter, some, table.mixed(there[some], op.row, changed(table, op)))

    def _put(self, letter: str, row: Row) -> Iterator[Change]:
        """A row is inserted, or replaces the one that has its key."""
        table, there = self.tables[letter], self.rows[letter]
        held = [n for n, old in enumerate(there) if table.key and table.key_of(old) == table.key_of(row)]
        if held:
            yield "U", table.name, there[held[0]], row
            there[held[0]] = row
        else:
            there.append(row)
            yield "I", table.name, row

    def _update(self, letter: str, number: int, row: Row) -> Iterator[Change]:
        """A row becomes another one, unless its new key is taken."""
        table, there = self.tables[letter], self.rows[letter]
        others = there[:number] + there[number + 1 :]
        if not table.key or table.key_of(row) not in map(table.key_of, others):
            yield "U", table.name, there[number], row
            there[number] = row

    def _remove(self, letter: str, number: int) -> Change:
        row = self.rows[letter].pop(number)
        self.gone[letter].append(row)
        return "D", self.tables[letter].name, row
