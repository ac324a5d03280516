"""`type: console`: rows on standard output."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TextIO

from pydantic import Field

from headrace.core.context import Batch
from headrace.core.sink import APPENDS, Delivery, Rewind, Side, Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ONE_BATCH_AT_A_TIME = threading.Lock()
_ROW_NUMBER_IN_PARTITION = (1 << 33) - 1
"""The lower bits of Spark's `monotonically_increasing_id`; the upper ones are the partition."""


class ConsoleSink(Sink):
    """Prints each batch: a table on a terminal, one JSON document per row when piped.

    Delivery: best effort; a batch that is replayed is printed again. Order: as the rows come, partition by partition.
    Scale: every row is computed and counted, `limit` rows per partition reach the driver.
    """

    reads_all: ClassVar[bool] = True

    type: Literal["console"] = "console"
    format: Literal["auto", "table", "json"] = Field(
        "auto",
        description="A table, or one JSON document per line; `auto` is a table on a terminal and JSON in a pipe.",
    )
    limit: int | None = Field(20, ge=1, description="Rows to print per batch; null prints all of them.")

    @property
    def guarantee(self) -> Delivery:
        """A terminal forgets nothing and checks nothing."""
        return "best_effort"

    def write_batch(self, rows: DataFrame, batch: Batch) -> None:
        """Print the batch; an empty one prints nothing."""
        as_table = self.format == "table" or (self.format == "auto" and sys.stdout.isatty())
        kept, total = self._first_rows(rows, as_table)
        if total == 0:
            return
        with _ONE_BATCH_AT_A_TIME:
            if as_table:
                _print_table(sys.stdout, rows.columns, kept, total, batch)
            else:
                _print_json(sys.stdout, kept, total, batch)

    def rewind_effect(self, rewind: Rewind, replace: bool) -> str:
        """What is on the screen stays there."""
        return f"{rewind.words}: their rows are printed again"

    def beside_effect(self, side: Side) -> str:
        """What was printed is printed."""
        return APPENDS

    def _first_rows(self, rows: DataFrame, as_text: bool) -> tuple[list[Any], int]:
        """The rows to print, as JSON or as texts, and how many there are in all, in one pass over all partitions.

        A plain `limit` would leave partitions unread, and with them the state of the flow uncommitted.
        """
        from pyspark.sql import Observation
        from pyspark.sql import functions as sf

        counted = Observation()
        row = sf.struct(*(sf.col(f"`{name}`") for name in rows.columns))
        shown = row.cast(_all_text(rows.columns)) if as_text else sf.to_json(row, {"ignoreNullFields": "false"})
        printed = rows.observe(counted, sf.count(sf.lit(1)).alias("rows")).select(shown.alias("row"))
        if self.limit is not None:
            number = sf.monotonically_increasing_id().bitwiseAND(sf.lit(_ROW_NUMBER_IN_PARTITION))
            printed = printed.withColumn("number", number).where(sf.col("number") < self.limit)
        kept = [found["row"] for found in printed.collect()]
        return kept[: self.limit], counted.get["rows"]


def _all_text(columns: list[str]) -> str:
    return f"struct<{', '.join(f'`{name}`: string' for name in columns)}>"


def _print_json(out: TextIO, rows: list[str], total: int, batch: Batch) -> None:
    for line in _json_lines(rows, total, batch):
        out.write(line + "\n")
    out.flush()


def _json_lines(rows: list[str], total: int, batch: Batch) -> Iterator[str]:
    head = f'{{"flow": {json.dumps(batch.flow)}, "batch": {batch.batch_id}'
    for row in rows:
        yield f'{head}, "row": {row}}}'
    if total > len(rows):
        yield f'{head}, "more": {total - len(rows)}}}'


def _print_table(out: TextIO, columns: list[str], rows: list[Any], total: int, batch: Batch) -> None:
    from rich.console import Console
    from rich.table import Table

    at = datetime.now(UTC).astimezone().strftime("%H:%M:%S")
    more = total - len(rows)
    table = Table(
        title=f"{batch.flow} · batch {batch.batch_id} · {at}",
        caption=f"… and {more} more" if more else None,
        title_justify="left",
        caption_justify="left",
    )
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*("" if value is None else value for value in row))
    Console(file=out, markup=False, highlight=False).print(table)
