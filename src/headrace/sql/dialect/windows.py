"""TUMBLE, HOP and SESSION as Spark's `window` and `session_window`.

The start and end of a window are fields of it. Its time (TUMBLE_ROWTIME) is for further windows, so it must stay an
event time to Spark: `window_time` over the finished groups, which makes of the SELECT a subquery of another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlglot import exp

from headrace.core.schema import quoted
from headrace.sql.dialect.lengths import spark_length
from headrace.sql.dialect.scope import QueryScope, identifiers, relations
from headrace.sql.dialect.syntax import WindowTable
from headrace.sql.query import Query, SqlError
from headrace.sql.text_edits import Edit
from headrace.sql.tokens import TokenList

_LENGTHS = {"tumble": 1, "hop": 2, "session": 1}
_PARTS = ("start", "end", "rowtime", "proctime")
_COLUMNS = {"window_start": "start", "window_end": "end", "window_time": "rowtime"}
# Dagger's time of a window is a millisecond before its end; as an event time it is Spark's, a microsecond before
_TIME = "({window}.end - INTERVAL '0.001' SECOND)"


@dataclass(frozen=True)
class Windows:
    """Rewrites the windows of one query."""

    query: Query
    words: TokenList
    scope: QueryScope

    def edits(self) -> Iterator[Edit]:
        """All that has to change for Spark to understand the windows."""
        timed: dict[int, list[exp.Expr]] = {}
        for call in self.query.tree.find_all(exp.Anonymous):
            kind, _, part = call.name.lower().partition("_")
            if kind not in _LENGTHS or (part and part not in _PARTS):
                continue
            yield from self._call(call, kind, part, timed)
        for table in self.query.windows:
            yield from self._table(table, timed)
        for items in timed.values():
            yield from self._timed(items)

    def _call(self, call: exp.Anonymous, kind: str, part: str, timed: dict[int, list[exp.Expr]]) -> Iterator[Edit]:
        select = call.find_ancestor(exp.Select)
        self._check_place(call, kind, part, select)
        bracket = self._bracket(call)
        name = "session_window" if kind == "session" else "window"
        if call.find_ancestor(exp.Having, exp.Select) is not select:
            # the groups are made by then, and the window is one of their columns
            text = _TIME.format(window=name) if part == "rowtime" else f"{name}.{part}"
            yield self.words.replace(bracket - 1, self.words.closing(bracket), text)
            return
        yield self.words.replace(bracket - 1, bracket - 1, name)
        yield from self._lengths(call, kind, bracket)
        if part == "rowtime" and _is_item(call, select):
            timed.setdefault(id(select), []).append(call)
        elif part == "rowtime":
            before, after = _TIME.split("{window}")
            yield self.words.before(bracket - 1, before)
            yield self.words.after(self.words.closing(bracket), after)
        elif part:
            yield self.words.after(self.words.closing(bracket), f".{part}{_name(call, select, f'{kind}_{part}')}")

    def _lengths(self, call: exp.Anonymous, kind: str, bracket: int) -> Iterator[Edit]:
        arguments = self.words.arguments(bracket)
        if len(arguments) != 1 + _LENGTHS[kind]:
            wanted = "a time, a slide and a size" if kind == "hop" else "a time and a length"
            raise self._error(call, f"{call.name.upper()} needs {wanted}", _example(kind))
        found = [self._length(call, self.words.source(*argument)) for argument in arguments[1:]]
        # HOP has the slide before the size, Spark's window the other way round
        for argument, length in zip(arguments[1:], reversed(found), strict=True):
            yield self.words.replace(*argument, f"'{length}'")

    def _length(self, node: exp.Expr, text: str) -> str:
        length = spark_length(text)
        if length is None:
            hint = "write e.g. INTERVAL '60' SECOND; SECOND, MINUTE, HOUR and DAY are possible"
            raise self._error(node, f"'{text}' is no length that a window can have", hint)
        return length

    def _check_place(self, call: exp.Anonymous, kind: str, part: str, select: exp.Select | None) -> None:
        if part == "proctime":
            hint = f"use {kind.upper()}_ROWTIME; a batch that runs again must give the same rows"
            raise self._error(call, f"{call.name.upper()}: there are no windows over the clock here", hint)
        group = select.args.get("group") if select is not None else None
        windows = [one for one in group.expressions if _kind(one)] if group is not None else []
        if len(windows) > 1:
            hint = "group by one window, and put the other around it: SELECT … FROM (SELECT …) GROUP BY …"
            raise self._error(windows[1], "a GROUP BY can have only one window", hint)
        if not part and not any(one is call for one in windows):
            hint = f"it makes groups: GROUP BY {_example(kind)}; {kind.upper()}_START(…) is the beginning of a window"
            raise self._error(call, f"{kind.upper()} stands outside GROUP BY", hint)
        if part and not any(_kind(one) == kind and self._alike(one, call) for one in windows):
            found = f", which has {self._text(windows[0])}" if windows else ""
            hint = f"write GROUP BY {kind.upper()}{self._text(call)[len(call.name) :]}"
            raise self._error(call, f"{self._text(call)} has no such window in GROUP BY{found}", hint)

    def _alike(self, one: exp.Expr, other: exp.Expr) -> bool:
        """Whether two calls are about the same windows, however their lengths are written."""
        return self._signature(one) == self._signature(other)

    def _signature(self, call: exp.Expr) -> list[str | None]:
        time, *lengths = [self.words.source(*pair) for pair in self.words.arguments(self._bracket(call))] or [""]
        return [time.split(".")[-1].strip(" `").lower(), *(spark_length(text) for text in lengths)]

    def _text(self, call: exp.Expr) -> str:
        bracket = self._bracket(call)
        return " ".join(self.words.source(bracket - 1, self.words.closing(bracket)).split())

    def _bracket(self, call: exp.Expr) -> int:
        return self.words.at(int(call.meta["start"])) + 1

    def _table(self, table: WindowTable, timed: dict[int, list[exp.Expr]]) -> Iterator[Edit]:
        """The columns that a window table adds to those of its input, where they are used."""
        node = next(one for one in self.query.tree.find_all(exp.Table) if one.this.meta.get("start") == table.start)
        kind = table.function.lower()
        if kind not in ("tumble", "hop") or len(table.lengths) != _LENGTHS[kind]:
            raise self._error(node, f"{table.function} is no table of windows here", "TUMBLE and HOP are")
        select = node.find_ancestor(exp.Select)
        assert select is not None, "a table stands in a SELECT"
        lengths = [f"'{self._length(node, text)}'" for text in reversed(table.lengths)]
        window = f"window({', '.join([self._time(table, node, select), *lengths])})"
        grouped = False
        for column in select.find_all(exp.Column, bfs=False):
            parts = identifiers(column)
            part = _COLUMNS.get(parts[-1].name.lower()) if parts else None
            if part is None or column.find_ancestor(exp.Select) is not select or not _of(parts, node, select):
                continue
            if column.find_ancestor(exp.Having, exp.Select) is not select:
                yield self._replaced(parts, _TIME.format(window="window") if part == "rowtime" else f"window.{part}")
            elif isinstance(column.parent, exp.Group):
                yield self._key(parts, "" if grouped else window)
                grouped = True
            else:
                yield self._column(column, part, window, select, timed)

    def _key(self, parts: list[exp.Identifier], window: str) -> Edit:
        """Start, end and time of a window are one key to Spark: the second and third go with the comma before them."""
        first = self.words.at(int(parts[0].meta["start"]))
        last = self.words.at(int(parts[-1].meta["start"]))
        return self.words.replace(first if window else first - 1, last, window)

    def _time(self, table: WindowTable, node: exp.Table, select: exp.Select) -> str:
        meaning = self.scope.rowtime(node, table.time.strip("`").lower())
        time = table.time if meaning is None or meaning.column is None else quoted(meaning.column)
        return time if len(list(relations(select))) == 1 else f"{quoted(node.alias_or_name)}.{time}"

    def _replaced(self, parts: list[exp.Identifier], text: str) -> Edit:
        return Edit(int(parts[0].meta["start"]), int(parts[-1].meta["end"]) + 1, text)

    def _column(
        self, column: exp.Column, part: str, window: str, select: exp.Select, timed: dict[int, list[exp.Expr]]
    ) -> Edit:
        parts = identifiers(column)
        if part == "rowtime" and select.args.get("group") is not None and _is_item(column, select):
            timed.setdefault(id(select), []).append(column)
            return self._replaced(parts, window)
        text = _TIME.format(window=window) if part == "rowtime" else f"{window}.{part}"
        return self._replaced(parts, text + _name(column, select, parts[-1].name))

    def _timed(self, items: list[exp.Expr]) -> Iterator[Edit]:
        """`SELECT …, window_time(w) AS w FROM (SELECT …)`: the time of a group is known when the group is made."""
        select = items[0].find_ancestor(exp.Select)
        assert select is not None, "an item of a SELECT"
        first, last = self.words.select_of(self.words.at(min(_starts(items[0]))))
        names = []
        for number, item in enumerate(select.expressions):
            if item.is_star:
                hint = "name the columns: * cannot be combined with the time of a window"
                raise self._error(items[0], "SELECT * with the time of a window", hint)
            # Dagger's own name for a column without one
            name = item.output_name if not _is_call(item) else item.alias
            if not name:
                name = f"EXPR${number}"
                yield self.words.after(self._last_word(item, last), f" AS {quoted(name)}")
            is_time = any(item.unalias() is one for one in items)
            names.append(f"window_time({quoted(name)}) AS {quoted(name)}" if is_time else quoted(name))
        yield self.words.before(first, f"SELECT {', '.join(names)} FROM (")
        yield self.words.after(last, ")")

    def _last_word(self, item: exp.Expr, last: int) -> int:
        """The last word of an item of a SELECT list."""
        start = self.words.at(min(_starts(item)))
        for place in self.words.level(start, last):
            following = self.words.word(place + 1)
            if following in (",", "FROM") or place == last:
                return place
        return last

    def _error(self, node: exp.Expr, message: str, hint: str) -> SqlError:
        return self.query.error_at(node, "dagger-window", message, hint)


def _kind(node: exp.Expr) -> str:
    name = node.name.lower() if isinstance(node, exp.Anonymous) else ""
    return name if name in _LENGTHS else ""


def _example(kind: str) -> str:
    slide = "INTERVAL '10' SECOND, " if kind == "hop" else ""
    return f"{kind.upper()}(rowtime, {slide}INTERVAL '60' SECOND)"


def _is_item(node: exp.Expr, select: exp.Select | None) -> bool:
    """Whether it is, but for its name, an item of the SELECT list."""
    holder = node.parent if isinstance(node.parent, exp.Alias) else node
    return holder.parent is select and holder.arg_key == "expressions"


def _is_call(item: exp.Expr) -> bool:
    return not isinstance(item, exp.Alias | exp.Column | exp.Dot)


def _name(node: exp.Expr, select: exp.Select | None, name: str) -> str:
    """A name for an item that has none of its own and would lose the one it got from what was written."""
    unnamed = node.parent is select and node.arg_key == "expressions"
    return f" AS {name}" if unnamed else ""


def _of(parts: list[exp.Identifier], table: exp.Table, select: exp.Select) -> bool:
    if len(parts) == 1:
        return len(list(relations(select))) == 1
    return len(parts) == 2 and parts[0].name.lower() == table.alias_or_name.lower()


def _starts(node: exp.Expr) -> list[int]:
    return [int(part.meta["start"]) for part in node.walk() if "start" in part.meta]
