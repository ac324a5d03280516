"""The contract of sinks. Only sinks start work."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal

from headrace.core.component import Component
from headrace.core.context import Batch, Context

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

Delivery = Literal["exactly_once", "at_least_once", "idempotent", "best_effort"]


class Sink(Component):
    """Subclass this first: one method, one batch.

    Spark may run a batch again after a crash, so writing the same batch twice must leave it there once: compare
    `batch.generation` and `batch.batch_id` with what is already written, or write under names made from them.
    """

    family: ClassVar[str] = "sinks"

    @property
    def guarantee(self) -> Delivery:
        """How often a row arrives, whatever happens on the way."""
        return "idempotent"

    @property
    def lake_path(self) -> str | None:
        """The lake table other flows can read this sink's rows from, if it keeps one."""
        return None

    @property
    def realtime(self) -> bool:
        """Whether a real-time flow can write to it."""
        return False

    def check(self, context: Context) -> None:
        """Ask the system behind this sink whether it can be written; a ProjectError says what to mend."""

    def check_rows(self, context: Context, columns: Sequence[str], output: str, schema: pa.Schema | None) -> None:
        """Refuse, at plan time, columns or an output mode this sink cannot take. `schema` is known only with Spark."""

    @abstractmethod
    def write_batch(self, rows: DataFrame, batch: Batch) -> None:
        """Write one batch, or nothing if it is already there."""


class StreamingSink(Sink):
    """The full tier: a sink that Spark itself can also write to record by record, as real-time flows need."""

    @abstractmethod
    def writer(self, rows: DataFrame, context: Context) -> DataStreamWriter:
        """The configured writer; the runner adds checkpoint and trigger and starts it."""
