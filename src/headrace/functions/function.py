"""The description of a function: data for plans, the engine and the reference pages.

A function is implemented in one of two ways. `expand` turns a call into Spark expressions, which Spark optimises and
which run in real-time flows. `arrow` computes whole Arrow columns in a Python worker.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from headrace.functions.resources import Resources
from headrace.sql.query import SqlError

Kind = Literal["scalar", "aggregate", "table"]


@dataclass(frozen=True)
class Arrow:
    """A function over Arrow columns, and the Spark type of its result."""

    compute: Callable[..., Any]
    returns: str


@dataclass(frozen=True)
class Function:
    """A function of the library or of a project."""

    name: str
    signatures: tuple[str, ...]
    """Parameters and result, such as `lat DOUBLE, lon DOUBLE -> STRING`; `…` means any number of further ones."""
    about: str
    """Its result, also for NULL and for values out of range."""
    example: str
    gives: str
    """The result of the example, as text."""
    expand: Callable[[FunctionCall], str | None] | None = None
    """Expands a call into plain Spark SQL; None if only `arrow` computes it."""
    arrow: Arrow | None = None
    build: Callable[[Resources], Arrow] | None = None
    """Builds `arrow` from the resources of the project."""
    kind: Kind = "scalar"
    spelled: bool = False
    """Whether Spark has a function of this name too: then only this exact spelling means ours."""

    @property
    def arity(self) -> tuple[int, int | None]:
        """The smallest and the largest number of arguments; None for any number."""
        counts = [len(_parameters(signature)) for signature in self.signatures]
        return min(counts), None if any("…" in signature for signature in self.signatures) else max(counts)

    @property
    def usage(self) -> str:
        return "; ".join(f"{self.name}({signature.replace(' ->', ') gives', 1)}" for signature in self.signatures)


def _parameters(signature: str) -> list[str]:
    """The parameters of a signature: `a ARRAY<INT>, b MAP<K, V>, … -> T` has two."""
    parameters = re.sub(r"<[^>]*>", "", signature.rpartition("->")[0])
    return [part for part in (piece.strip() for piece in parameters.split(",")) if part and part != "…"]


@dataclass(frozen=True)
class Argument:
    """One argument of a call: its SQL with all calls expanded, and its value if it is a literal."""

    sql: str
    value: str | float | None = None
    call: FunctionCall | None = None
    """The call, if the argument is a call of a library function."""

    @property
    def is_null(self) -> bool:
        """Whether it is the literal NULL."""
        return self.sql.upper() == "NULL"

    def typed(self, kind: str) -> Argument:
        """The same with a type for NULL: many Spark functions refuse an untyped NULL."""
        return replace(self, sql=f"CAST(NULL AS {kind})") if self.is_null else self


@dataclass(frozen=True)
class FunctionCall:
    """A call of a function in a statement."""

    function: Function
    args: tuple[Argument, ...]
    line: int
    offset: int
    distinct: bool = False
    suffix: str = ""
    """FILTER and OVER behind the call of an aggregate."""

    def error(self, message: str, hint: str | None = None) -> SqlError:
        return SqlError(
            "function-argument",
            f"{self.function.name}: {message}",
            line=self.line,
            offset=self.offset,
            hint=hint or f"for example: {self.function.example}",
        )

    def text(self, index: int) -> str | None:
        """The value of a string literal; None if the argument is computed."""
        value = self.args[index].value
        return value if isinstance(value, str) else None

    def written(self, index: int, what: str) -> str:
        """The value of an argument that must be a string literal."""
        literal = self.text(index)
        if literal is None:
            raise self.error(f"{what} must be a string literal, not computed")
        return literal

    def number(self, index: int) -> float | None:
        """The value of a number literal; None if the argument is computed."""
        value = self.args[index].value
        return value if isinstance(value, int | float) else None

    def whole_number(self, index: int, least: int, most: int, what: str) -> None:
        """Refuse a number literal out of range."""
        value = self.number(index)
        if value is not None and not (least <= value <= most and value == int(value)):
            raise self.error(f"{what} must be a whole number from {least} to {most}, not {value:g}")

    def aggregate(self, inner: str) -> str:
        """An aggregate with the FILTER and OVER of the call, which come before operations on its result."""
        return f"{inner} {self.suffix}" if self.suffix else inner
