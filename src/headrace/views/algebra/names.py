"""Names of columns in the algebra, and the texts that use them."""

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
    """Makes names of which no two are alike: the number at the end is never given twice."""

    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def fresh(self, base: str) -> str:
        """A new name that reminds of `base`."""
        return f"{re.sub(r'[^0-9a-z]+', '_', base.lower())[:40].strip('_') or 'c'}_{next(self._numbers)}"


@lru_cache(maxsize=4096)
def _places(text: str) -> tuple[tuple[int, int, str], ...]:
    tokens = Verbatim().tokenize(text)
    return tuple((one.start, one.end + 1, one.text) for one in tokens if one.token_type is TokenType.IDENTIFIER)


def columns_in(*texts: str | None) -> set[str]:
    """The names in some texts: columns, and perhaps fields of them."""
    return {name for text in texts if text for _, _, name in _places(text)}


def substitute(text: str, texts: Mapping[str, str]) -> str:
    """The text with other texts in the place of some names."""
    pieces, position = [], 0
    for start, end, name in _places(text):
        if name in texts:
            pieces += [text[position:start], texts[name]]
            position = end
    return "".join(pieces) + text[position:]


def quoted(name: str) -> str:
    """A name as text."""
    return f"`{name}`"


def as_column(text: str) -> str | None:
    """The column that a text is, if it is nothing but one."""
    found = _PLAIN.fullmatch(text)
    return found[1] if found else None


def pass_through(columns: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Columns that are kept as they are by a Project."""
    return tuple((name, quoted(name)) for name in columns)
