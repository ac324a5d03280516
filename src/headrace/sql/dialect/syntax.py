"""What of Dagger's SQL neither Spark nor the parser can read, in a spelling that both can.

Only words are looked at here, before the query is parsed; nothing that Spark would understand is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sqlglot.tokenizer_core import TokenType

from headrace.sql.errors import SqlError
from headrace.sql.text_edits import Edit
from headrace.sql.tokens import TokenList

_TYPES = {"VARCHAR": "STRING", "BYTES": "BINARY", "VARBINARY": "BINARY"}
_TIMESTAMPS = ("TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ", "TIME")
_JOIN_WORDS = ("CROSS", "LEFT", "INNER", "OUTER", "JOIN", ",")


@dataclass(frozen=True)
class WindowTable:
    """`TABLE(TUMBLE(TABLE t, DESCRIPTOR(time), …))`, of which only `t` is left: what it said, and where `t` begins."""

    start: int
    function: str
    time: str
    lengths: tuple[str, ...]


def respell(words: TokenList) -> tuple[list[Edit], list[WindowTable]]:
    """The edits that make a text readable, and the windows that were written as tables."""
    edits: list[Edit] = []
    tables: list[WindowTable] = []
    types: set[int] = set()
    index = 0
    while index < len(words):
        if index in types:
            index += 1
            continue
        if words.word(index) in ("CAST", "TRY_CAST") and words.kind(index + 1) is TokenType.L_PAREN:
            types |= set(_type_of_cast(words, index))
            edits += _types(words, _type_of_cast(words, index))
        found, following = _at(words, index, tables)
        edits += found
        index = following
    return edits, tables


def _at(words: TokenList, index: int, tables: list[WindowTable]) -> tuple[list[Edit], int]:
    """The edits for the construct that starts at a word, and the index of the next word."""
    word = words.word(index)
    opens = words.kind(index + 1) is TokenType.L_PAREN
    if word == "INTERVAL":
        return list(_precisions(words, index)), index + 1
    if word == "ROW" and opens:
        return [words.replace(index, index, "struct")], index + 1
    if word == "FLOOR" and opens:
        return list(_floor_to(words, index)), index + 2
    if word == "LATERAL" and words.word(index + 1) == "TABLE" and words.word(index - 1) == "FROM":
        return _table_alone(words, index), index + 3
    if word == "LATERAL" and words.word(index + 1) == "TABLE":
        refuse_joins_after(words, index + 2)
        return list(lateral_view(words, index, index + 2)), index + 3
    if word == "TABLE" and opens and words.word(index + 2) in ("TUMBLE", "HOP", "CUMULATE", "SESSION"):
        return _window_table(words, index, tables)
    if word == "TABLE" and opens and words.word(index - 1) == "FROM":
        return _table_alone(words, index), index + 2
    return [], index + 1


def _precisions(words: TokenList, index: int) -> Iterator[Edit]:
    """`INTERVAL '60' SECOND(5)`: how many digits the number may have."""
    unit = index + 2
    for place in (unit, unit + 4, unit + 5):
        has_digits = words.kind(place + 1) is TokenType.L_PAREN and words.kind(place + 2) is TokenType.NUMBER
        if has_digits and (place == unit or words.word(place - 1) == "TO"):
            yield words.replace(place + 1, words.closing(place + 1), "")


def _type_of_cast(words: TokenList, index: int) -> range:
    """The words of the type in `CAST(x AS type)`."""
    close = words.closing(index + 1)
    places = [i for i in words.level(index + 2, close - 1) if words.word(i) == "AS"]
    return range(places[-1] + 1, close) if places else range(0)


def _types(words: TokenList, places: range) -> Iterator[Edit]:
    """Types that Spark calls differently; how precise a timestamp is cannot be said there."""
    for place in places:
        word, opens = words.word(place), words.kind(place + 1) is TokenType.L_PAREN
        if word == "ROW" and opens:
            end = words.closing(place + 1)
            yield words.replace(place, place + 1, "STRUCT<")
            yield words.replace(end, end, ">")
        elif word == "ROW":
            yield words.replace(place, place, "STRUCT")
        elif word in _TYPES and not (word == "VARCHAR" and opens):
            yield words.replace(place, words.closing(place + 1) if opens else place, _TYPES[word])
        elif word in _TIMESTAMPS and opens:
            yield words.replace(place + 1, words.closing(place + 1), "")
        elif word == "PRECISION" and words.word(place - 1) == "DOUBLE":
            yield words.replace(place, place, "")


def _floor_to(words: TokenList, index: int) -> Iterator[Edit]:
    """`FLOOR(t TO HOUR)`."""
    close = words.closing(index + 1)
    if words.word(close - 2) == "TO":
        yield words.replace(index, index + 1, f"date_trunc('{words.word(close - 1)}', ")
        yield words.replace(close - 2, close - 1, "")


def _table_alone(words: TokenList, index: int) -> list[Edit]:
    """`FROM TABLE(f(x))`, with LATERAL or not: there is nothing before it that it could be joined to."""
    bracket = index + 1 if words.word(index) == "TABLE" else index + 2
    close = words.closing(bracket)
    return [words.replace(index, bracket, ""), words.replace(close, close, "")]


def lateral_view(words: TokenList, first: int, bracket: int, function: str | None = None) -> Iterator[Edit]:
    """`, LATERAL TABLE(f(x)) AS t(a, b)` as `LATERAL VIEW f(x) t AS a, b`: one generator, and never a join of streams.

    `first` is the word after the join's own words, `bracket` the one that opens around the function's call, or around
    the arguments of `function`.
    """
    start, close = first, words.closing(bracket)
    while words.word(start - 1) in _JOIN_WORDS:
        start -= 1
    outer = " OUTER" if "LEFT" in (words.word(i) for i in range(start, first)) else ""
    call = "" if function is None else f"{function}("
    yield words.replace(start, bracket, f" LATERAL VIEW{outer} {call}")
    alias, last = _alias(words, close)
    yield words.replace(close, last, ("" if function is None else ")") + alias)


def _alias(words: TokenList, close: int) -> tuple[str, int]:
    """The alias after a bracket as LATERAL VIEW wants it, and its last word, that of `ON TRUE` included."""
    last = close
    name, columns = "unnested", ""
    named = words.word(close + 1) == "AS"
    place = close + 1 + named
    if named or words.kind(place) in (TokenType.VAR, TokenType.IDENTIFIER):
        name, last = words.source(place, place), place
        if words.kind(place + 1) is TokenType.L_PAREN:
            last = words.closing(place + 1)
            columns = f" AS {words.source(place + 2, last - 1)}"
    if words.word(last + 1) == "ON" and words.word(last + 2) == "TRUE":
        last += 2
    return f" {name}{columns}", last


def refuse_joins_after(words: TokenList, bracket: int, place_of: Callable[[int], int] = int) -> None:
    """LATERAL VIEW stands behind all joins of a FROM, so what is unnested must be written there.

    `place_of` says where an offset was in the text of the user.
    """
    _, last = _alias(words, words.closing(bracket))
    place = last + 1
    while words.word(place) in _JOIN_WORDS:
        place += 1
    if place > last + 1 and words.word(place) not in ("UNNEST", "LATERAL"):
        raise SqlError(
            "dagger-unnest-before-join",
            f"{words.word(place - 1)} {words.source(place, place)} comes after UNNEST or LATERAL TABLE",
            line=words.tokens[place].line,
            offset=place_of(words.start(place)),
            hint="write all joins of inputs first, or put the part with UNNEST into brackets: (SELECT … )",
        )


def _window_table(words: TokenList, index: int, tables: list[WindowTable]) -> tuple[list[Edit], int]:
    """`TABLE(TUMBLE(TABLE t, DESCRIPTOR(time), INTERVAL …))`: the table itself; the window is made where it is used."""
    bracket, close = index + 3, words.closing(index + 1)
    parts = words.arguments(bracket)
    well_formed = (
        words.closing(bracket) == close - 1
        and len(parts) >= 3
        and words.word(parts[0][0]) == "TABLE"
        and words.word(parts[1][0]) == "DESCRIPTOR"
    )
    if not well_formed:
        return [], index + 3
    table, time = parts[0][0] + 1, parts[1][0] + 2
    lengths = tuple(words.source(first, last) for first, last in parts[2:])
    tables.append(WindowTable(words.start(table), words.word(index + 2), words.source(time, parts[1][1] - 1), lengths))
    edits = [words.replace(index, table - 1, ""), Edit(words.end(parts[0][1]), words.end(close), "")]
    return edits, close + 1
