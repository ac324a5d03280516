"""Templates with columns: `orders:{order_id}`, `orders-{at:yyyy.MM.dd}`. Spark fills them in."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.core.lazy import lazy_modules

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql import functions as F
else:
    F = lazy_modules("pyspark.sql.functions")

_PART = re.compile(r"\{\{|\}\}|\{([^{}:]+)(?::([^{}]+))?\}|[{}]")


@dataclass(frozen=True)
class DatePlaceholder:
    """A column in a template, optionally with a date pattern."""

    column: str
    pattern: str | None


def parts(text: str) -> list[str | DatePlaceholder]:
    """The literal texts and placeholders of a template; a ValueError explains an invalid one."""
    result: list[str | DatePlaceholder] = []
    position, literal = 0, ""
    for match in _PART.finditer(text):
        literal += text[position : match.start()]
        position = match.end()
        if match[0] in ("{{", "}}"):
            literal += match[0][0]
        elif match[1] is None:
            raise ValueError(f"'{text}' has a single '{match[0]}'; write {{column}}, and {{{{ or }}}} for a brace")
        else:
            result += [literal] if literal else []
            result.append(DatePlaceholder(match[1].strip(), match[2]))
            literal = ""
    literal += text[position:]
    return [*result, literal] if literal else result


def columns_of(text: str) -> list[str]:
    """The columns that a template uses."""
    return [part.column for part in parts(text) if isinstance(part, DatePlaceholder)]


def filled(text: str, escape: Callable[[Column], Column] = lambda column: column) -> Column:
    """The template filled with the values of each row; null when one of them is null."""
    texts = [F.lit(part) if isinstance(part, str) else escape(_value(part)) for part in parts(text)]
    return F.concat(*texts) if texts else F.lit("")


def _value(placeholder: DatePlaceholder) -> Column:
    column = F.col(f"`{placeholder.column}`")
    return F.date_format(column, placeholder.pattern) if placeholder.pattern else column.cast("string")


def in_url(column: Column) -> Column:
    """A value escaped for use as one part of a URL."""
    return F.replace(F.url_encode(column), F.lit("+"), F.lit("%20"))
