"""A parsed query: its inputs, its output, and positions in its text.

sqlglot parses the text; Spark decides what it means.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from headrace.sql.dialect.syntax import WindowTable, respell
from headrace.sql.errors import SqlError
from headrace.sql.text_edits import Edit, apply_edits, edited_offset, original_offset
from headrace.sql.tokens import TokenList

__all__ = ["DIALECT", "Query", "SqlError", "cte_of", "parse"]

DIALECT = "spark"
_NOT_AFTER_COMMA = (TokenType.COMMA, TokenType.R_PAREN, TokenType.FROM)


@dataclass(frozen=True)
class Query:
    """One parsed SELECT."""

    text: str
    """The user's text."""
    tree: exp.Query
    """The tree of `sql`; `tokens` are of `sql` too."""
    tokens: tuple[Token, ...] = field(default=(), repr=False)
    sql: str = field(default="", repr=False)
    """What Spark runs: the text, rewritten where needed. Lines are those of the text."""
    edits: tuple[tuple[Edit, ...], ...] = field(default=(), repr=False)
    """The edits from the text to `sql`, step by step."""
    windows: tuple[WindowTable, ...] = field(default=(), repr=False)
    """Windows written as tables, not yet translated."""

    def __post_init__(self) -> None:
        if not self.sql:
            object.__setattr__(self, "sql", self.text)

    @cached_property
    def inputs(self) -> tuple[exp.Table, ...]:
        """Every reference to an input; CTEs, functions and catalogue tables are excluded."""
        tables = [t for t in _relations(self.tree) if t.name and not t.db and cte_of(t) is None]
        return tuple(sorted(tables, key=lambda table: int(table.this.meta.get("start", 0))))

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of its inputs, in order, each once."""
        return tuple(dict.fromkeys(table.name for table in self.inputs))

    @property
    def output(self) -> tuple[str, ...]:
        """The names of its columns; `*` or empty where only Spark knows them."""
        return tuple(self.tree.named_selects)

    @property
    def words(self) -> frozenset[str]:
        """Every token that may be a column name, in lower case."""
        return frozenset(token.text.lower() for token in self.tokens)

    def reads_input(self, node: exp.Expr) -> bool:
        """Whether this part of the query reads an input, possibly through a CTE."""
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
        """An error at this part of the text."""
        starts = [part.meta for part in node.walk() if "start" in part.meta]
        first = min(starts, key=lambda meta: int(meta["start"]), default={"line": 1, "start": 0})
        offset = self.place(int(first["start"]))
        return SqlError(code, message, line=int(first["line"]), offset=offset, hint=hint)

    def place(self, offset: int) -> int:
        """The offset in the text of an offset in `sql`."""
        for step in reversed(self.edits):
            offset = original_offset(offset, step)
        return offset

    def edited(self, edits: Iterable[Edit]) -> Query:
        """The query with its `sql` edited and parsed again."""
        sql, applied = apply_edits(self.sql, edits)
        steps = (*self.edits, applied)
        return replace(_parse_sql(self.text, sql, steps), windows=())


def _relations(node: exp.Expr) -> Iterator[exp.Table]:
    """Tables that are read; those in a join hint are not."""
    for table in node.find_all(exp.Table, bfs=False):
        if table.find_ancestor(exp.Hint) is None:
            yield table


def cte_of(table: exp.Table) -> exp.CTE | None:
    """The CTE that a table name refers to, if any is in scope: `WITH t AS (SELECT … FROM t)` reads the input t."""
    if table.db:
        return None
    node: exp.Expr | None = table
    inside: exp.Expr | None = None
    while node is not None:
        if isinstance(node, exp.CTE):
            inside = node
        clause = node.args.get("with_")
        if clause is not None:
            cte = _visible(clause, table.name.lower(), inside)
            if cte is not None:
                return cte
        node = node.parent
    return None


def _visible(clause: exp.With, name: str, inside: exp.Expr | None) -> exp.CTE | None:
    """The CTE of that name in a WITH clause, visible from one of its CTEs (`inside`) or from the main query."""
    for cte in clause.expressions:
        if cte is inside and not clause.recursive:
            return None  # a CTE sees those before it, not itself
        if cte.alias.lower() == name:
            return cte if isinstance(cte, exp.CTE) else None
    return None


def parse(text: str) -> Query:
    """The query, or a SqlError: `sql-syntax`, `sql-not-a-query`."""
    try:
        words = TokenList(text, Dialect.get_or_raise(DIALECT).tokenize(text))
    except TokenError as error:
        raise _token_error(error) from error
    edits, windows = respell(words)
    if not edits:
        return _parse_sql(text, text, ())
    sql, applied = apply_edits(text, edits)
    moved_windows = tuple(replace(window, start=edited_offset(window.start, applied)) for window in windows)
    return replace(_parse_sql(text, sql, (applied,)), windows=moved_windows)


def _parse_sql(text: str, sql: str, steps: tuple[tuple[Edit, ...], ...]) -> Query:
    dialect = Dialect.get_or_raise(DIALECT)
    try:
        tokens = _with_functions_as_names(dialect.tokenize(sql))
        _refuse_stray_commas(tokens)
        statements = [tree for tree in dialect.parser().parse(tokens, sql) if tree is not None]
    except ParseError as error:
        raise _at_original_offset(_syntax_error(sql, error), steps) from error
    except SqlError as error:
        raise _at_original_offset(error, steps) from None
    except RecursionError:
        raise SqlError("sql-syntax", "SQL is nested too deeply", hint="split it into flows or CTEs") from None
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        statement_types = ", ".join(statement.key.upper() for statement in statements) or "nothing"
        hint = "a flow's SQL is a single SELECT or WITH … SELECT"
        raise SqlError("sql-not-a-query", f"expected one SELECT, found {statement_types}", hint=hint)
    return Query(text, statements[0], tuple(tokens), sql, steps)


def _at_original_offset(error: SqlError, steps: tuple[tuple[Edit, ...], ...]) -> SqlError:
    """The error with its offset in the user's text."""
    for step in reversed(steps):
        error.offset = original_offset(error.offset or 0, step)
    return error


def _refuse_stray_commas(tokens: list[Token]) -> None:
    """Refuse extra commas: the parser accepts them; Spark does not, or reads the FROM after one as a column."""
    for before, after in pairwise(token for token in tokens if token.token_type is not TokenType.SEMICOLON):
        comma = before.token_type is TokenType.COMMA and after.token_type in _NOT_AFTER_COMMA
        empty = before.token_type is TokenType.SELECT and after.token_type in (TokenType.COMMA, TokenType.FROM)
        if comma or empty:
            raise SqlError(
                "sql-syntax",
                f"SQL cannot be parsed: something is missing between '{before.text}' and '{after.text}'",
                line=before.line,
                offset=before.start,
                hint="remove the comma, or add the missing expression" if comma else "add the columns to select",
            )
    last = next((token for token in reversed(tokens) if token.token_type is not TokenType.SEMICOLON), None)
    if last is not None and last.token_type is TokenType.COMMA:
        raise SqlError(
            "sql-syntax",
            "SQL cannot be parsed: it ends with a comma",
            line=last.line,
            offset=last.start,
            hint="remove the comma, or add the missing expression",
        )


def _with_functions_as_names(tokens: list[Token]) -> list[Token]:
    """Marks `window(…)`, its column and Dagger's `SESSION(…)` as names: sqlglot reads them as a WINDOW clause and a
    setting."""
    changed = list(tokens)
    for index, token in enumerate(tokens):
        following = [t.token_type for t in tokens[index + 1 : index + 3]]
        is_clause = following[1:] == [TokenType.ALIAS] and following[0] is not TokenType.R_PAREN
        session = token.token_type is TokenType.SESSION and following[:1] == [TokenType.L_PAREN]
        if session or (token.token_type is TokenType.WINDOW and not is_clause):
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
    """Only the missing sign and its line: the tokeniser's message quotes half the text."""
    match = re.search(r"Missing (\S+) from (\d+):", f"{error.__cause__} {error}")
    problem = f"a {match[1]} is not closed" if match else "a quote or a comment is not closed"
    line = int(match[2]) if match else 1
    return SqlError("sql-syntax", f"SQL cannot be parsed: {problem}", line=line, hint="check quotes and comments")
