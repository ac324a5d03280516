"""The life of a small view, for tests of all sinks that can hold one: composite key, nulls, deletes, a row again."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from headrace.core.capabilities import HoldsView
from headrace.core.context import Batch
from headrace.core.endpoints import OLD, OP, Op

COLUMNS = "region string, id bigint, amount decimal(9,2), note string"
KEY = ("region", "id")
Row = tuple[Any, ...]
Change = tuple[Op, Row, Row | None]

_FIRST, _OTHER, _THIRD = ("eu", 1, Decimal("10.50"), "a"), ("us", 1, None, None), ("eu|1", 2, Decimal(0), "c")
_CHANGED, _AGAIN = ("eu", 1, None, "b"), ("us", 1, Decimal("-1.00"), None)
LIFE: list[list[Change]] = [
    [(Op.INSERT, row, None) for row in (_FIRST, _OTHER, _THIRD)],
    [(Op.UPDATE, _CHANGED, _FIRST), (Op.DELETE, _OTHER, _OTHER), (Op.INSERT, ("us", 2, None, "new"), None)],
    [(Op.INSERT, _AGAIN, None), (Op.DELETE, _THIRD, _THIRD)],
]


def frame(spark: Any, changes: list[Change], columns: str = COLUMNS) -> Any:
    """Changes as a view gives them to its sinks."""
    rows = [(*row, int(op), old) for op, row, old in changes]
    return spark.createDataFrame(rows, f"{columns}, {OP} tinyint, {OLD} struct<{columns}>").repartition(2)


def after(number: int) -> set[Row]:
    """The rows of the view after a batch."""
    rows: dict[Row, Row] = {}
    for op, row, _ in (change for batch in LIFE[: number + 1] for change in batch):
        rows.pop(row[:2], None)
        if op is not Op.DELETE:
            rows[row[:2]] = row
    return set(rows.values())


def live(
    spark: Any, sink: Callable[[], HoldsView], batch: Callable[[int], Batch], held: Callable[[], list[Row]]
) -> None:
    """Every batch comes twice, the second time from another process; what is held is the view all the same."""
    for number, changes in enumerate(LIFE):
        for _ in range(2):
            sink().write_changes(frame(spark, changes), KEY, batch(number))
            found = held()
            assert (len(found), set(found)) == (len(after(number)), after(number))
