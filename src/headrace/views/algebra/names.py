"""Column names of the algebra, and SQL expressions over them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count

from sqlglot.tokenizer_core import TokenType

from headrace.views.algebra.dialect import Verbatim

_PLAIN = re.compile(r"`(\w+)`")


@dataclass(frozen=True)
class FreshNames:
    """Generates unique names: each ends with a number that is used once."""

    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def fresh(self, base: str) -> str:
        """A new name that starts with `base`."""
        return f"{re.sub(r'[^0-9a-z]+', '_', base.lower())[:40].strip('_') or 'c'}_{next(self._numbers)}"


@lru_cache(maxsize=4096)
def _places(sql: str) -> tuple[tuple[int, int, str], ...]:
    tokens = Verbatim().tokenize(sql)
    return tuple(
        (token.start, token.end + 1, token.text) for token in tokens if token.token_type is TokenType.IDENTIFIER
    )


def columns_in(*expressions: str | None) -> set[str]:
    """The names in SQL expressions: columns, and possibly their fields."""
    return {name for sql in expressions if sql for _, _, name in _places(sql)}


def substitute(sql: str, replacements: Mapping[str, str]) -> str:
    """The expression with some names replaced by expressions."""
    pieces, position = [], 0
    for start, end, name in _places(sql):
        if name in replacements:
            pieces += [sql[position:start], replacements[name]]
            position = end
    return "".join(pieces) + sql[position:]


def quoted(name: str) -> str:
    return f"`{name}`"


def as_column(sql: str) -> str | None:
    """The column, if the expression is only a column."""
    match = _PLAIN.fullmatch(sql)
    return match[1] if match else None


def pass_through(columns: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """The expressions of a Projection that passes columns through unchanged."""
    return tuple((name, quoted(name)) for name in columns)
