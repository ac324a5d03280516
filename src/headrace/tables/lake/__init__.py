"""`type: lake`: the rows of a Delta table, and its change feed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from headrace.core.context import Context
from headrace.core.options.durations import Duration
from headrace.core.positions import Position
from headrace.core.runtime.lazy import lazy_modules
from headrace.core.tables import TableReader, TableShape, TableSource
from headrace.systems.delta import columns_of, open_table

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from headrace.tables.lake import reader
else:
    reader = lazy_modules("headrace.tables.lake.reader")


class LakeTable(TableSource):
    """A Delta table whose rows have a key: its rows once, then the changes of each commit.

    With the table's change feed (`delta.enableChangeDataFeed`) only the changes of a commit are read. Without it, or
    when the feed does not reach back far enough, all rows are read again after a commit and compared.

    Delivery: exactly once. Order: by commit; a commit is one step. Scale: the changes of one commit in memory; without
    a feed, tables of some million rows. Of several rows with one key, an arbitrary one is kept.
    """

    type: Literal["lake"] = "lake"
    path: str = Field(description="Folder or URI of the table, relative to the project.", examples=["lake/orders"])
    every: Duration = Field(timedelta(seconds=1), description="How often to look for new commits.")

    @property
    def label(self) -> str:
        return f"lake {self.path}"

    @property
    def group(self) -> str:
        """The table: other tables are committed independently."""
        return f"lake {self.path}"

    def check(self, context: Context) -> None:
        self.open(context)

    def open(self, context: Context) -> DeltaTable:
        return open_table(self.path, context)

    def shape(self, context: Context) -> TableShape:
        """The table's columns; Delta tables have no key."""
        return TableShape(columns_of(self.open(context)))

    @classmethod
    def reader(
        cls,
        tables: Mapping[str, TableSource],
        shapes: Mapping[str, TableShape],
        after: Position | None,
        context: Context,
    ) -> TableReader:
        """Follows the log of each table."""
        own = {name: table for name, table in tables.items() if isinstance(table, cls)}
        return reader.LakeReader(own, shapes, after, context)
