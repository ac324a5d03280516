"""The contract of sinks. What only some sinks can do is in `core.capabilities`.

Sources and processors only build a lazy DataFrame; `write_batch` lets Spark compute it.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal

from headrace.core.component import Component
from headrace.core.context import Batch, Context

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame

Delivery = Literal["exactly_once", "at_least_once", "idempotent", "best_effort"]


class Sink(Component):
    """Base class of all sinks: implement `write_batch`. Add capabilities only where needed.

    Spark may run a batch again after a crash, so `write_batch` must be idempotent: compare `batch.generation` and
    `batch.batch_id` with what is already written, or write under names that are derived from them.
    """

    family: ClassVar[str] = "sinks"

    @property
    def guarantee(self) -> Delivery:
        """How often a row arrives, also after crashes and retries."""
        return "idempotent"

    @property
    def target(self) -> str:
        """What the sink writes to: the topic, the path, the table. Kind and target identify a sink within its flow, so
        that a batch in flight finds what each sink has already written, also when the sinks are reordered."""
        return ""

    def check(self, context: Context) -> None:
        """Verify that the system behind this sink can be written; raise a ProjectError with a fix otherwise."""

    def check_rows(self, context: Context, columns: Sequence[str], output: str, schema: pa.Schema | None) -> None:
        """Refuse, at plan time, columns or an output mode this sink cannot take. `schema` is known only with Spark."""

    @abstractmethod
    def write_batch(self, rows: DataFrame, batch: Batch) -> None:
        """Write one batch, or nothing if it is already written."""
