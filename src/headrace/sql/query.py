"""One parsed query: what it names, what it gives, and where in its text things stand.

sqlglot reads the text, Spark stays the judge of what it means.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from headrace.core.errors import ProjectError

DIALECT = "spark"


class SqlError(ProjectError):
    """An error in a SQL text, with its line (from 1) and, where known, its offset (from 0) in the text."""

    def __init__(
        self, code: str, message: str, *, line: int = 1, offset: int | None = None, hint: str | None = None
    ) -> None:
        super().__init__(code, message, hint=hint)
        self.line = line
        self.offset = offset


@dataclass(frozen=True)
class Query:
    """One parsed SELECT."""

    text: str
    tree: exp.Query
    tokens: tuple[Token, ...] = field(default=(), repr=False)

    @cached_property
    def inputs(self) -> tuple[exp.Table, ...]:
        """Every place where an input is named; its own CTEs, functions and catalogue tables are not among them."""
        found = [t for t in _relations(self.tree) if t.name and not t.db and cte_of(t) is None]
        return tuple(sorted(found, key=lambda table: int(table.this.meta.get("start", 0))))

    @property
    def tables(self) -> tuple[str, ...]:
        """The inputs it names, in order, each once."""
        return tuple(dict.fromkeys(table.name for table in self.inputs))

    @property
    def output(self) -> tuple[str, ...]:
        """The names of its columns; `*` or nothing where only Spark can tell."""
        return tuple(self.tree.named_selects)

    @property
    def words(self) -> frozenset[str]:
        """Every word that may name a column, in lower case."""
        return frozenset(token.text.lower() for token in self.tokens)

    def reads_input(self, node: exp.Expr) -> bool:
        """Whether this part of the query takes rows from an input, be it through a CTE."""
        return self._reads_input(node, frozenset())

    def _reads_input(self, node: exp.Expr, seen: frozenset[int]) -> bool:
        for table in _relations(node):
            cte = cte_of(table)
            if cte is None:
                if table.name and not table.db:
                    return True
            elif id(cte) not in seen and self._reads_input(cte.this, seen | {id(cte)}):
                return True
        return False

    def error_at(self, node: exp.Expr, code: str, message: str, hint: str) -> SqlError:
        """An error that points to this part of the text."""
        starts = [part.meta for part in node.walk() if "start" in part.meta]
        first = min(starts, key=lambda meta: int(meta["start"]), default={"line": 1, "start": 0})
        return SqlError(code, message, line=int(first["line"]), offset=int(first["start"]), hint=hint)


def _relations(node: exp.Expr) -> Iterator[exp.Table]:
    """Tables as relations: those a join hint names are only mentioned."""
    for table in node.find_all(exp.Table, bfs=False):
        if table.find_ancestor(exp.Hint) is None:
            yield table


def cte_of(table: exp.Table) -> exp.CTE | None:
    """The CTE a table's name stands for, if there is one in sight: `WITH t AS (SELECT … FROM t)` reads the input t."""
    if table.db:
        return None
    node: exp.Expr | None = table
    inside: exp.Expr | None = None
    while node is not None:
        if isinstance(node, exp.CTE):
            inside = node
        clause = node.args.get("with_")
        if clause is not None:
            found = _visible(clause, table.name.lower(), inside)
            if found is not None:
                return found
        node = node.parent
    return None


def _visible(clause: exp.With, name: str, inside: exp.Expr | None) -> exp.CTE | None:
    """The CTE of that name in a WITH, seen from one of its CTEs (`inside`) or from the query after it."""
    for cte in clause.expressions:
        if cte is inside and not clause.recursive:
            return None  # a CTE sees those before it, not itself
        if cte.alias.lower() == name:
            return cte if isinstance(cte, exp.CTE) else None
    return None


def parse(sql: str) -> Query:
    """The query, or a SqlError: `sql-syntax`, `sql-not-a-query`."""
    dialect = Dialect.get_or_raise(DIALECT)
    try:
        tokens = _with_window_as_name(dialect.tokenize(sql))
        statements = [tree for tree in dialect.parser().parse(tokens, sql) if tree is not None]
    except ParseError as error:
        raise _syntax_error(sql, error) from error
    except TokenError as error:
        raise _token_error(error) from error
    except RecursionError:
        raise SqlError("sql-syntax", "SQL is nested too deeply", hint="split it into flows or CTEs") from None
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        found = ", ".join(statement.key.upper() for statement in statements) or "nothing"
        hint = "a flow's SQL is a single SELECT or WITH … SELECT"
        raise SqlError("sql-not-a-query", f"expected one SELECT, found {found}", hint=hint)
    return Query(sql, statements[0], tuple(tokens))


def _with_window_as_name(tokens: list[Token]) -> list[Token]:
    """Spark's `window(…)` and the column it gives are names; sqlglot takes the word for a WINDOW clause everywhere."""
    changed = list(tokens)
    for index, token in enumerate(tokens):
        following = [t.token_type for t in tokens[index + 1 : index + 3]]
        is_clause = following[1:] == [TokenType.ALIAS] and following[0] is not TokenType.R_PAREN
        if token.token_type is TokenType.WINDOW and not is_clause:
            changed[index] = Token(
                TokenType.VAR, token.text, token.line, token.col, token.start, token.end, token.comments
            )
    return changed


def _syntax_error(sql: str, error: ParseError) -> SqlError:
    detail = error.errors[0] if error.errors else {}
    description = str(detail.get("description") or "")
    near = str(detail.get("highlight") or "")
    line, column = int(detail.get("line") or 1), int(detail.get("col") or 1)
    before = "".join(sql.splitlines(keepends=True)[: line - 1])
    reason = description.lower() if description.startswith("Expecting") else "unexpected text"
    return SqlError(
        "sql-syntax",
        f"SQL cannot be parsed: {reason}" + (f" near '{near}'" if near else ""),
        line=line,
        offset=len(before) + max(column - max(len(near), 1), 0),
        hint="check commas, brackets and keywords near this place",
    )


def _token_error(error: TokenError) -> SqlError:
    """The tokeniser quotes half the text; only the missing sign and its line are of use."""
    place = re.search(r"Missing (\S+) from (\d+):", f"{error.__cause__} {error}")
    what = f"a {place[1]} is not closed" if place else "a quote or a comment is not closed"
    line = int(place[2]) if place else 1
    return SqlError("sql-syntax", f"SQL cannot be read: {what}", line=line, hint="check quotes and comments")
