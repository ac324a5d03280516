"""Parses the text of a query before it runs: one statement that only reads, with its tables and columns.

This is the first of two barriers. The second is the database: it contains only what the caller may see, and cannot
access files or the network, nor change its configuration. So this parser need not be right about every detail of SQL.
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
# rows that are generated from the text itself
_ROW_MAKERS = ("GENERATE_SERIES", "RANGE", "UNNEST", "EXPLODING_GENERATE_SERIES", "REPEAT_ROW")
# functions that reveal the machine, not the data
_FORBIDDEN_FUNCTIONS = ("CURRENT_SETTING", "GETENV", "GETVARIABLE")
_ALLOWED = "SELECT, WITH, VALUES, FROM, DESCRIBE, SUMMARIZE, SHOW TABLES and EXPLAIN of these"


@dataclass(frozen=True)
class QueriedTable:
    """A table of a query. Names are case-insensitive, as in SQL."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name


@dataclass(frozen=True)
class SqlQuery:
    """One statement that reads."""

    text: str
    lists_tables: bool = False
    """SHOW TABLES."""
    describes: bool = False
    """It reads columns, not rows."""
    tables: frozenset[QueriedTable] = frozenset()
    defined: frozenset[str] = frozenset()
    """Names that the query defines (CTEs)."""
    words: frozenset[str] | None = None
    """All names in the text; None: it uses columns without naming them."""

    def columns(self, names: Iterable[str]) -> list[str]:
        """The columns of a table that the query may use: too many are only slow, too few would be wrong."""
        all_names = list(names)
        if self.words is None:
            return all_names
        # a count of all rows needs no column, but a table must have one
        return [name for name in all_names if name.lower() in self.words] or all_names[:1]


def read(text: str) -> SqlQuery:
    """Parse a query; RequestError when it is not one."""
    if len(text) > LONGEST:
        raise RequestError("bad-sql", f"the query is longer than {LONGEST:,} characters", status=413)
    tree = _parsed(_explained(text))
    if isinstance(tree, exp.Show) and text.strip().rstrip(";").upper().split() == ["SHOW", "TABLES"]:
        return SqlQuery(text, lists_tables=True)
    if not isinstance(tree, _READS):
        raise not_allowed(f"{_first_word(text)} is not a query")
    for node in tree.walk():
        _check(node)
    return SqlQuery(
        text,
        describes=isinstance(tree, exp.Describe),
        tables=frozenset(
            QueriedTable(node.db.lower(), node.name.lower())
            for node in tree.find_all(exp.Table)
            if isinstance(node.this, exp.Identifier)
        ),
        defined=frozenset(node.alias.lower() for node in tree.find_all(exp.CTE)),
        words=_words(tree),
    )


def not_allowed(what: str) -> RequestError:
    """The error for a text that does more than read."""
    return RequestError("sql-not-allowed", what, status=403, hint=f"allowed is one of {_ALLOWED}")


def _explained(text: str) -> str:
    """The statement after EXPLAIN, which the parser does not parse."""
    return _EXPLAIN.sub("", text, count=1)


def _parsed(text: str) -> exp.Expr:
    try:
        # the parser would read `?::` as one operator; here it is a parameter and a cast
        trees = sqlglot.parse(text.replace("?::", "? ::"), dialect="duckdb")
    except (SqlglotError, RecursionError) as error:
        raise _bad(text, error) from error
    statements = [tree for tree in trees if tree is not None]
    if len(statements) != 1:
        raise RequestError("bad-sql", f"the text has {len(statements)} statements", hint="send one query at a time")
    return statements[0]


def _bad(text: str, error: Exception) -> RequestError:
    """The error message of DuckDB, if it cannot parse the text either."""
    described = error.errors[0].get("description") if isinstance(error, ParseError) and error.errors else None
    message = f"Parser Error: {described}" if described else "Parser Error: the text cannot be parsed"
    try:
        duckdb.extract_statements(text)
    except duckdb.Error as duckdb_error:
        message = str(duckdb_error)
    return RequestError("bad-sql", message[:1_000])


def _first_word(text: str) -> str:
    words = text.split(None, 1)
    return words[0].upper()[:40] if words else "nothing"


def _check(node: exp.Expr) -> None:
    if isinstance(node, _WRITES):
        raise not_allowed("the query would do more than read")
    if isinstance(node, exp.Table) and not isinstance(node.this, exp.Identifier):
        name = _function(node.this)
        if name not in _ROW_MAKERS:
            raise not_allowed(f"{name.lower() or 'this'} is not a table that can be queried")
    if isinstance(node, exp.Func) and _function(node) in _FORBIDDEN_FUNCTIONS:
        raise not_allowed(f"the function {_function(node).lower()} is not allowed")


def _function(node: exp.Expr) -> str:
    if isinstance(node, exp.Anonymous):
        return str(node.name).upper()
    return node.sql_name().upper() if isinstance(node, exp.Func) else ""


def _words(tree: exp.Expr) -> frozenset[str] | None:
    """All names; None when columns of a table may be used without being named."""
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
        # the name of a table as a value is the whole row
        if isinstance(node, exp.Column) and not node.table and node.name.lower() in tables:
            return None
    return frozenset(node.name.lower() for node in tree.find_all(exp.Identifier))
