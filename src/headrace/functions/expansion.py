"""Expands calls of library functions into plain Spark SQL.

It edits tokens of the text and leaves all others unchanged, so that lines and the rest of a query stay as written.
Calls inside the arguments of others are expanded first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import TokenType

from headrace.functions.function import Argument, Function, FunctionCall
from headrace.functions.library import library
from headrace.functions.user import UserFunction
from headrace.sql.query import DIALECT, Query, SqlError
from headrace.sql.text_edits import Edit, apply_edits, original_offset
from headrace.sql.tokens import TokenList

# after these words a name and a bracket are not a call
_NO_CALL_AFTER = ("AS", "INTO", "TABLE", "FUNCTION")
# words that may follow a projection without an alias
_PROJECTION_ENDS = ("", ",", "FROM", ")", "UNION", "EXCEPT", "INTERSECT", "WHERE", "GROUP BY", "HAVING", ";", "LATERAL")
_CLAUSES = ("SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "HAVING", "ON", "USING", "VALUES", "SET", "SORT BY")


def expand(query: Query, own: Mapping[str, UserFunction] | None = None) -> Query:
    """The query with library functions, and aggregates of the project, expanded into plain Spark SQL."""
    try:
        edits = list(_Expander(TokenList(query.sql, query.tokens), own or {}).edits())
    except SqlError as error:
        error.offset = query.place(error.offset or 0)
        raise
    return query.edited(edits) if edits else query


@dataclass(frozen=True)
class Expanded:
    """A statement with library functions expanded."""

    text: str
    sql: str
    edits: tuple[Edit, ...] = ()

    def function_at(self, offset: int) -> Function | None:
        """The library function whose expansion contains a place of `sql`."""
        if offset < 0:
            return None
        name = re.match(r"\w+(?=\s*\()", self.text[original_offset(offset, self.edits) :])
        return library().get(name[0].lower()) if name else None


def expand_text(text: str, own: Mapping[str, UserFunction] | None = None) -> Expanded:
    """Any statement with library functions expanded; a text that cannot be parsed is left to Spark."""
    try:
        tokens = Dialect.get_or_raise(DIALECT).tokenize(text)
    except TokenError:
        return Expanded(text, text)
    return Expanded(text, *apply_edits(text, _Expander(TokenList(text, tokens), own or {}).edits()))


def called(text: str) -> set[str]:
    """The names, in lower case, of all functions that a text calls."""
    try:
        words = TokenList(text, Dialect.get_or_raise(DIALECT).tokenize(text))
    except TokenError:
        return set()
    return {words.tokens[index].text.lower() for index in range(len(words)) if _is_call(words, index)}


def _is_call(words: TokenList, index: int) -> bool:
    """Whether a token is the name of a called function, not of a schema, an alias or a table."""
    if words.kind(index + 1) is not TokenType.L_PAREN or words.kind(index) is TokenType.STRING:
        return False
    if words.kind(index - 1) is TokenType.DOT or words.word(index - 1) in _NO_CALL_AFTER:
        return False
    if words.word(index - 1) == "VIEW" and words.word(index - 2) != "LATERAL":
        return False
    close = words.closing(index + 1)
    # WITH name(a, b) AS (
    return not (words.word(close + 1) == "AS" and words.kind(close + 2) is TokenType.L_PAREN)


@dataclass(frozen=True)
class _Expander:
    words: TokenList
    own: Mapping[str, UserFunction]

    def edits(self) -> Iterator[Edit]:
        """One edit for each call that is not inside another one."""
        index = 0
        while index < len(self.words):
            function = self._function(index)
            if function is None:
                index += 1
                continue
            edit, index = self._rewritten(index, function)
            if edit is not None:
                yield edit

    def _function(self, index: int) -> Function | None:
        """The function that is called at a token."""
        if not _is_call(self.words, index):
            return None
        name = self.words.tokens[index].text
        if name.lower() in self.own:
            return self.own[name.lower()].function
        function = library().get(name.lower())
        return None if function is None or (function.spelled and name != function.name) else function

    def _rewritten(self, index: int, function: Function) -> tuple[Edit | None, int]:
        """The edit of one call, and the token after it."""
        close = self.words.closing(index + 1)
        last = self._suffix_end(close) if function.kind == "aggregate" else close
        text, before = self._text(index, function), self.words.source(index, last)
        if "".join(text.split()) == "".join(before.split()):
            return None, last + 1
        if function.kind == "table":
            lateral = self._lateral(index, close, text)
            if lateral is not None:
                return lateral
        elif self._is_unnamed_projection(index, last):
            text += f" AS `{_name(before)}`"
        return self.words.replace(index, last, text), last + 1

    def _text(self, index: int, function: Function) -> str:
        """A call in plain Spark SQL."""
        call = self._call(index, function)
        least, most = function.arity
        if len(call.args) < least or (most is not None and len(call.args) > most):
            wanted = str(least) if least == most else f"{least} or more" if most is None else f"{least} to {most}"
            raise call.error(f"it takes {wanted} arguments, and there are {len(call.args)}", function.usage)
        made = None if function.expand is None else function.expand(call)
        if made is not None:
            return made if function.kind == "table" else f"({made})"
        distinct = "DISTINCT " if call.distinct else ""
        return f"{self.words.tokens[index].text}({distinct}{', '.join(one.sql for one in call.args)})"

    def _call(self, index: int, function: Function) -> FunctionCall:
        token = self.words.tokens[index]
        places = self.words.arguments(index + 1)
        distinct = bool(places) and self.words.word(places[0][0]) == "DISTINCT"
        if distinct:
            places[0] = (places[0][0] + 1, places[0][1])
        close = self.words.closing(index + 1)
        end = self._suffix_end(close)
        suffix = self._plain(close + 1, end) if function.kind == "aggregate" and end > close else ""
        args = tuple(self._argument(first, last) for first, last in places)
        return FunctionCall(function, args, token.line, token.start, distinct, suffix)

    def _argument(self, first: int, last: int) -> Argument:
        tokens = self.words.tokens[first : last + 1]
        kinds = [token.token_type for token in tokens]
        function = self._function(first)
        if function is not None and self.words.closing(first + 1) == last:
            return Argument(self._plain(first, last), call=self._call(first, function))
        value: str | float | None = None
        if kinds == [TokenType.STRING]:
            value = tokens[0].text
        elif kinds[-1:] == [TokenType.NUMBER] and kinds[:-1] in ([], [TokenType.DASH]):
            value = _number(tokens[-1].text, negative=len(tokens) == 2)
        return Argument(self._plain(first, last), value)

    def _plain(self, first: int, last: int) -> str:
        """The text of some tokens without comments, with all calls expanded."""
        pieces, index, end = [], first, None
        while index <= last:
            if end is not None and self.words.start(index) > end:
                pieces.append(" ")
            function = self._function(index)
            if function is None:
                # the tokeniser makes three tokens of 1L, all in one place
                if end is None or self.words.start(index) >= end:
                    pieces.append(self.words.source(index, index))
                    end = self.words.end(index)
                index += 1
                continue
            close = self.words.closing(index + 1)
            close = self._suffix_end(close) if function.kind == "aggregate" else close
            pieces.append(self._text(index, function))
            end, index = self.words.end(close), close + 1
        return "".join(pieces)

    def _suffix_end(self, close: int) -> int:
        """The last token of FILTER (…) and OVER (…) behind a call."""
        if self.words.word(close + 1) == "FILTER" and self.words.kind(close + 2) is TokenType.L_PAREN:
            close = self.words.closing(close + 2)
        if self.words.word(close + 1) == "OVER":
            bracket = self.words.kind(close + 2) is TokenType.L_PAREN
            close = self.words.closing(close + 2) if bracket else close + 2
        return close

    def _is_unnamed_projection(self, first: int, last: int) -> bool:
        """Whether a call is a whole column of a SELECT, without an alias."""
        if self.words.word(last + 1) not in _PROJECTION_ENDS or self.words.kind(last + 1) is TokenType.IDENTIFIER:
            return False
        if self.words.word(first - 1) not in ("SELECT", "DISTINCT", "ALL", ","):
            return False
        place = first - 1
        while place >= 0 and self.words.word(place) not in _CLAUSES:
            if self.words.kind(place) in (TokenType.L_PAREN, TokenType.L_BRACKET):
                return False
            closes = self.words.kind(place) in (TokenType.R_PAREN, TokenType.R_BRACKET)
            place = self.words.opening(place) - 1 if closes else place - 1
        return self.words.word(place) == "SELECT"

    def _lateral(self, index: int, close: int, text: str) -> tuple[Edit, int] | None:
        """`, LATERAL f(x) AS v(a, b)` as LATERAL VIEW, which streams support; None elsewhere."""
        if self.words.word(index - 1) != "LATERAL":
            return None
        first, outer = self._join(index - 1)
        place = close + 1
        if self.words.word(place) == "AS":
            place += 1
        name = self.words.source(place, place) if self._is_name(place) else ""
        place += 1 if name else 0
        columns = ""
        if name and self.words.kind(place) is TokenType.L_PAREN:
            end = self.words.closing(place)
            columns = f" AS {self._plain(place + 1, end - 1)}"
            place = end + 1
        if self.words.word(place) == "ON" and self.words.word(place + 1) == "TRUE":
            place += 2
        if first is None or self._relation_follows(place):
            return None
        view = f" LATERAL VIEW {'OUTER ' if outer else ''}{text} {name or '_t'}{columns}"
        return self.words.replace(first, place - 1, view), place

    def _join(self, lateral: int) -> tuple[int | None, bool]:
        """Where the comma or JOIN before LATERAL begins, and whether it is an outer join."""
        if self.words.word(lateral - 1) == ",":
            return lateral - 1, False
        if self.words.word(lateral - 1) != "JOIN":
            return None, False
        first = lateral - 1
        while self.words.word(first - 1) in ("LEFT", "OUTER", "CROSS", "INNER"):
            first -= 1
        return first, self.words.word(first) == "LEFT"

    def _is_name(self, index: int) -> bool:
        return self.words.kind(index) in (TokenType.VAR, TokenType.IDENTIFIER)

    def _relation_follows(self, index: int) -> bool:
        """Whether another relation is joined after it: a LATERAL VIEW comes after all joins."""
        word = self.words.word(index)
        another = word == "," and self.words.word(index + 1) != "LATERAL"
        return another or word in ("JOIN", "LEFT", "RIGHT", "FULL", "CROSS", "INNER", "NATURAL")


def _name(text: str) -> str:
    """The column name that Spark gives a call; without dots, which would mean a field."""
    return " ".join(text.split()).replace("`", "").replace(".", "_")


def _number(text: str, *, negative: bool) -> float | None:
    found = re.match(r"\d+(\.\d*)?([eE][+-]?\d+)?|\.\d+", text)
    if found is None:
        return None
    value = float(found[0]) if not found[0].isdigit() else int(found[0])
    return -value if negative else value
