"""What a function is: described once, as data, from which plans, the engine and the reference pages are made.

A function is made in one of two ways. `expand` writes a call in Spark's own expressions, which the optimiser sees
through and which run in real time. `arrow` computes whole Arrow columns in a Python worker.
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
    """A function over Arrow columns, and the type of its result in Spark's words."""

    compute: Callable[..., Any]
    returns: str


@dataclass(frozen=True)
class Function:
    """One function of the library."""

    name: str
    signatures: tuple[str, ...]
    """Parameters and result, such as `lat DOUBLE, lon DOUBLE -> STRING`; with `…` there may be any number more."""
    about: str
    """What it gives, also for NULL and for values out of range."""
    example: str
    gives: str
    """What the example gives, as text."""
    expand: Callable[[FunctionCall], str | None] | None = None
    """The call in Spark's own words; None when only `arrow` can do it."""
    arrow: Arrow | None = None
    build: Callable[[Resources], Arrow] | None = None
    """Makes `arrow` of what the project has."""
    kind: Kind = "scalar"
    spelled: bool = False
    """Whether Spark has a function of this name too: then only this very spelling is meant."""

    @property
    def arity(self) -> tuple[int, int | None]:
        """The least and the largest number of arguments; None for any number."""
        counts = [len(_parameters(one)) for one in self.signatures]
        return min(counts), None if any("…" in one for one in self.signatures) else max(counts)

    @property
    def usage(self) -> str:
        """How it is called."""
        return "; ".join(f"{self.name}({one.replace(' ->', ') gives', 1)}" for one in self.signatures)


def _parameters(signature: str) -> list[str]:
    """`a ARRAY<INT>, b MAP<K, V>, … -> T` has two."""
    given = re.sub(r"<[^>]*>", "", signature.rpartition("->")[0])
    return [part for part in (piece.strip() for piece in given.split(",")) if part and part != "…"]


@dataclass(frozen=True)
class Argument:
    """One argument of a call: its text with all calls in it written out, and its value where it is a constant."""

    sql: str
    value: str | float | None = None
    call: FunctionCall | None = None
    """The call that the argument is, when it is one of ours."""

    @property
    def is_null(self) -> bool:
        """Whether it is NULL, written out."""
        return self.sql.upper() == "NULL"

    def typed(self, kind: str) -> Argument:
        """The same, but for a NULL without a type, which many of Spark's functions refuse."""
        return replace(self, sql=f"CAST(NULL AS {kind})") if self.is_null else self


@dataclass(frozen=True)
class FunctionCall:
    """One call of a function in a text."""

    function: Function
    args: tuple[Argument, ...]
    line: int
    offset: int
    distinct: bool = False
    suffix: str = ""
    """FILTER and OVER behind the call of an aggregate."""

    def error(self, message: str, hint: str | None = None) -> SqlError:
        """What is wrong with the call, pointing to it."""
        return SqlError(
            "function-argument",
            f"{self.function.name}: {message}",
            line=self.line,
            offset=self.offset,
            hint=hint or f"for example: {self.function.example}",
        )

    def text(self, index: int) -> str | None:
        """The text of an argument that is written out; None when it is computed."""
        value = self.args[index].value
        return value if isinstance(value, str) else None

    def written(self, index: int, what: str) -> str:
        """The text of an argument that must be written out."""
        found = self.text(index)
        if found is None:
            raise self.error(f"{what} must be written out as a text, not computed")
        return found

    def number(self, index: int) -> float | None:
        """The value of an argument that is a number; None when it is computed."""
        value = self.args[index].value
        return value if isinstance(value, int | float) else None

    def whole_number(self, index: int, least: int, most: int, what: str) -> None:
        """Refuse a written number that is not among these."""
        value = self.number(index)
        if value is not None and not (least <= value <= most and value == int(value)):
            raise self.error(f"{what} must be a whole number from {least} to {most}, not {value:g}")

    def aggregate(self, inner: str) -> str:
        """An aggregate with the FILTER and OVER of the call: what is made of its result comes after them."""
        return f"{inner} {self.suffix}" if self.suffix else inner
