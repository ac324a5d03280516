"""The decorator of project functions, for facts that type hints do not express."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
MARK = "__headrace__"


def function(*, returns: str | None = None, aggregate: bool = False) -> Callable[[F], F]:
    """Describe a function of the project's `functions/` folder.

    `returns` is the Spark type of its result, which a function over `pd.Series` or `pa.Array` needs; an `aggregate`
    receives all values of a group, as lists.
    """

    def mark(described: F) -> F:
        setattr(described, MARK, {"returns": returns, "aggregate": aggregate})
        return described

    return mark
