"""What a question asks for, before anything runs: one statement that reads, and which tables and columns of them.

This is the first of two locks. The second is where it runs: a database that holds nothing but what the caller may see,
cannot reach files or networks and cannot be told otherwise. So nothing here has to be right about every word of SQL.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import duckdb
import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, SqlglotError

from headrace.core.errors import RequestError

LONGEST = 100_000
_EXPLAIN = re.compile(r"\A\s*EXPLAIN\s+(ANALYZE\s+)?", re.IGNORECASE)
_READS = (exp.Select, exp.SetOperation, exp.Subquery, exp.Values, exp.Describe, exp.Summarize)
_WRITES = (exp.DDL, exp.DML, exp.Command, exp.Into, exp.Set, exp.Copy, exp.Attach, exp.Detach, exp.Pragma, exp.Use)
# rows that come from nowhere but the text itself
_ROW_MAKERS = ("GENERATE_SERIES", "RANGE", "UNNEST", "EXPLODING_GENERATE_SERIES", "REPEAT_ROW")
# they tell of the machine, not of the data
_NOSY = ("CURRENT_SETTING", "GETENV", "GETVARIABLE")
_ALLOWED = "SELECT, WITH, VALUES, FROM, DESCRIBE, SUMMARIZE, SHOW TABLES and EXPLAIN of these"


@dataclass(frozen=True)
class QueriedTable:
    """A table that is asked for. Names mean the same whatever their case, as in SQL."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name


@dataclass(frozen=True)
class Question:
    """One statement that reads."""

    text: str
    lists_tables: bool = False
    """It is SHOW TABLES."""
    describes: bool = False
    """It asks for columns, not for rows."""
    tables: frozenset[QueriedTable] = frozenset()
    made_up: frozenset[str] = frozenset()
    """Names that the question gives to parts of itself."""
    words: frozenset[str] | None = None
    """All names in it; None: it speaks of columns without naming them."""

    def columns(self, names: Iterable[str]) -> list[str]:
        """Those of a table's columns that can matter: too many is only slow, too few would be wrong."""
        every = list(names)
        if self.words is None:
            return every
        # a count of all rows needs no column, but there is no table without one
        return [name for name in every if name.lower() in self.words] or every[:1]


def read(text: str) -> Question:
    """What a text asks for; a RequestError when it is not a question."""
    if len(text) > LONGEST:
        raise RequestError("bad-sql", f"the question is longer than {LONGEST:,} characters", status=413)
    tree = _parsed(_explained(text))
    if isinstance(tree, exp.Show) and text.strip().rstrip(";").upper().split() == ["SHOW", "TABLES"]:
        return Question(text, lists_tables=True)
    if not isinstance(tree, _READS):
        raise not_allowed(f"{_first_word(text)} is not a question")
    for node in tree.walk():
        _check(node)
    return Question(
        text,
        describes=isinstance(tree, exp.Describe),
        tables=frozenset(
            QueriedTable(node.db.lower(), node.name.lower())
            for node in tree.find_all(exp.Table)
            if isinstance(node.this, exp.Identifier)
        ),
        made_up=frozenset(node.alias.lower() for node in tree.find_all(exp.CTE)),
        words=_words(tree),
    )


def not_allowed(what: str) -> RequestError:
    """The error of a text that does more than ask."""
    return RequestError("sql-not-allowed", what, status=403, hint=f"allowed is one of {_ALLOWED}")


def _explained(text: str) -> str:
    """The statement behind EXPLAIN, which the parser takes as a whole."""
    return _EXPLAIN.sub("", text, count=1)


def _parsed(text: str) -> exp.Expr:
    try:
        # the parser has an operator of that look; a parameter and its type are two things
        found = sqlglot.parse(text.replace("?::", "? ::"), dialect="duckdb")
    except (SqlglotError, RecursionError) as error:
        raise _bad(text, error) from error
    statements = [tree for tree in found if tree is not None]
    if len(statements) != 1:
        raise RequestError(
            "bad-sql", f"there are {len(statements)} statements in it", hint="ask one question at a time"
        )
    return statements[0]


def _bad(text: str, error: Exception) -> RequestError:
    """In the words of who would run it, if it cannot read it either."""
    described = error.errors[0].get("description") if isinstance(error, ParseError) and error.errors else None
    message = f"Parser Error: {described}" if described else "Parser Error: this cannot be read"
    try:
        duckdb.extract_statements(text)
    except duckdb.Error as known:
        message = str(known)
    return RequestError("bad-sql", message[:1_000])


def _first_word(text: str) -> str:
    words = text.split(None, 1)
    return words[0].upper()[:40] if words else "nothing"


def _check(node: exp.Expr) -> None:
    if isinstance(node, _WRITES):
        raise not_allowed("this question would do more than read")
    if isinstance(node, exp.Table) and not isinstance(node.this, exp.Identifier):
        name = _function(node.this)
        if name not in _ROW_MAKERS:
            raise not_allowed(f"{name.lower() or 'this'} is not a table that can be asked")
    if isinstance(node, exp.Func) and _function(node) in _NOSY:
        raise not_allowed(f"{_function(node).lower()} cannot be asked for")


def _function(node: exp.Expr) -> str:
    if isinstance(node, exp.Anonymous):
        return str(node.name).upper()
    return node.sql_name().upper() if isinstance(node, exp.Func) else ""


def _words(tree: exp.Expr) -> frozenset[str] | None:
    """All names; None when the columns of a table can matter without being named."""
    if isinstance(tree, exp.Describe | exp.Summarize):
        return None
    tables = {name for node in tree.find_all(exp.Table) for name in (node.name.lower(), node.alias_or_name.lower())}
    for node in tree.walk():
        if isinstance(node, exp.Star) and not isinstance(node.parent, exp.Count):
            return None
        if isinstance(node, exp.Columns | exp.Pivot | exp.Describe | exp.Summarize):
            return None
        if isinstance(node, exp.Join) and node.args.get("method") == "NATURAL":
            return None
        # the name of a table as a value is its whole row
        if isinstance(node, exp.Column) and not node.table and node.name.lower() in tables:
            return None
    return frozenset(node.name.lower() for node in tree.find_all(exp.Identifier))
