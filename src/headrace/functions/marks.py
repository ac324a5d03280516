"""What a project's own functions can say about themselves that type hints do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
MARK = "__headrace__"


def function(*, returns: str | None = None, aggregate: bool = False) -> Callable[[F], F]:
    """Describe a function of the project's `functions/` folder.

    `returns` is the type of its result in Spark's words, which a function over `pd.Series` or `pa.Array` needs;
    `aggregate` says that it gets all values of a group, as lists.
    """

    def mark(described: F) -> F:
        setattr(described, MARK, {"returns": returns, "aggregate": aggregate})
        return described

    return mark
