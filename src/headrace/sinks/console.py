"""`type: console`: rows on standard output."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TextIO

from pydantic import Field

from headrace.core.capabilities import AppendsAfterSwitch, DescribesRewind, HoldsView, ReadsAllRows, Rewind
from headrace.core.context import Batch
from headrace.core.endpoints import OLD, OP, Op
from headrace.core.lazy import lazy_modules
from headrace.core.sink import Delivery

if TYPE_CHECKING:
    from pyspark import sql as pyspark_sql
    from pyspark.sql import Column, DataFrame
    from pyspark.sql import functions as sf
    from rich import console as rich_console
    from rich import table as rich_table
else:
    sf = lazy_modules("pyspark.sql.functions")
    pyspark_sql, rich_console, rich_table = lazy_modules("pyspark.sql", "rich.console", "rich.table")

_ONE_BATCH_AT_A_TIME = threading.Lock()
_SIGN = " "
"""The heading of the column of signs."""
_SIGNS = ("+", "~", "-")
_ROW_NUMBER_IN_PARTITION = (1 << 33) - 1
"""The lower bits of Spark's `monotonically_increasing_id`; the upper ones are the partition."""


class ConsoleSink(HoldsView, DescribesRewind, AppendsAfterSwitch, ReadsAllRows):
    """Prints each batch: a table on a terminal, one JSON document per row when piped.

    Of a view it prints the changes: `+` inserted, `~` updated, `-` deleted; in JSON as `change`, with the `old` row.
    Delivery: best effort; a repeated batch is printed again. Order: as the rows come, partition by partition.
    Scale: every row is computed and counted, `limit` rows per partition reach the driver.
    """

    type: Literal["console"] = "console"
    format: Literal["auto", "table", "json"] = Field(
        "auto",
        description="A table, or one JSON document per line; `auto` is a table on a terminal and JSON in a pipe.",
    )
    limit: int | None = Field(20, ge=1, description="Rows to print per batch; null prints all of them.")

    @property
    def guarantee(self) -> Delivery:
        """A terminal cannot recognize a repeated batch."""
        return "best_effort"

    def write_batch(self, rows: DataFrame, batch: Batch) -> None:
        """Print the batch, if it has rows."""
        self._print(rows, rows.columns, {"row": _row(rows.columns)}, batch)

    def write_changes(self, changes: DataFrame, key: Sequence[str], batch: Batch) -> None:
        columns = [name for name in changes.columns if name not in (OP, OLD)]
        sign, word = (_name_of_change(names) for names in (_SIGNS, ("insert", "update", "delete")))
        document = {"change": word, "row": _row(columns), "old": sf.col(OLD)}
        self._print(changes.withColumn(_SIGN, sign), [_SIGN, *columns], document, batch)

    def rewind_effect(self, rewind: Rewind, replace: bool) -> str:
        return f"{rewind.read_again}: their rows are printed again"

    def _print(self, rows: DataFrame, columns: Sequence[str], document: Mapping[str, Column], batch: Batch) -> None:
        """Print `columns` as a table, or `document` as JSON."""
        as_table = self.format == "table" or (self.format == "auto" and sys.stdout.isatty())
        parts = sf.struct(*(part.alias(name) for name, part in document.items()))
        shown = _row(columns).cast(_all_text(columns)) if as_table else sf.to_json(parts, {"ignoreNullFields": "false"})
        first, total = self._first_rows(rows, shown)
        if total == 0:
            return
        with _ONE_BATCH_AT_A_TIME:
            if as_table:
                _print_table(sys.stdout, columns, first, total, batch)
            else:
                _print_json(sys.stdout, first, total, batch)

    def _first_rows(self, rows: DataFrame, shown: Column) -> tuple[list[Any], int]:
        """The rows to print, and how many there are in all, in one pass over all partitions.

        A plain `limit` would leave partitions unread, and with them the state of the flow uncommitted.
        """
        counted = pyspark_sql.Observation()
        printed = rows.observe(counted, sf.count(sf.lit(1)).alias("rows")).select(shown.alias("row"))
        if self.limit is not None:
            number = sf.monotonically_increasing_id().bitwiseAND(sf.lit(_ROW_NUMBER_IN_PARTITION))
            printed = printed.withColumn("number", number).where(sf.col("number") < self.limit)
        first = [row["row"] for row in printed.collect()]
        return first[: self.limit], counted.get["rows"]


def _name_of_change(names: Sequence[str]) -> Column:
    return sf.element_at(sf.array(*map(sf.lit, names)), sf.col(OP) - int(Op.INSERT) + 1)


def _row(columns: Sequence[str]) -> Column:
    return sf.struct(*(sf.col(f"`{name}`") for name in columns))


def _all_text(columns: Sequence[str]) -> str:
    return f"struct<{', '.join(f'`{name}`: string' for name in columns)}>"


def _print_json(out: TextIO, rows: list[str], total: int, batch: Batch) -> None:
    for line in _json_lines(rows, total, batch):
        out.write(line + "\n")
    out.flush()


def _json_lines(rows: list[str], total: int, batch: Batch) -> Iterator[str]:
    head = f'{{"flow": {json.dumps(batch.flow)}, "batch": {batch.batch_id}'
    for row in rows:
        yield f"{head}, {row[1:]}"
    if total > len(rows):
        yield f'{head}, "more": {total - len(rows)}}}'


def _print_table(out: TextIO, columns: Sequence[str], rows: list[Any], total: int, batch: Batch) -> None:
    at = datetime.now(UTC).astimezone().strftime("%H:%M:%S")
    more = total - len(rows)
    table = rich_table.Table(
        title=f"{batch.flow} · batch {batch.batch_id} · {at}",
        caption=f"… and {more} more" if more else None,
        title_justify="left",
        caption_justify="left",
    )
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*("" if value is None else value for value in row))
    rich_console.Console(file=out, markup=False, highlight=False).print(table)
