"""`type: debezium`: the changes that Debezium writes to a Kafka topic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import pyarrow as pa
from pydantic import Field, model_validator

from headrace.core.context import Context
from headrace.core.errors import ProjectError
from headrace.core.lazy import lazy_modules
from headrace.core.positions import Position
from headrace.core.schema import from_ddl
from headrace.core.tables import TableReader, TableShape, TableSource
from headrace.systems.kafka.connection import KafkaConnection
from headrace.systems.schema_registry import Registry
from headrace.tables._options import Columns

if TYPE_CHECKING:
    from headrace.systems.kafka import cluster
    from headrace.tables.debezium import messages, reader, shape
    from headrace.tables.debezium.messages import MessageParser
else:
    cluster, messages, reader, shape = lazy_modules(
        "headrace.systems.kafka.cluster",
        "headrace.tables.debezium.messages",
        "headrace.tables.debezium.reader",
        "headrace.tables.debezium.shape",
    )

_OWN = "positions are kept with the table's log"


class DebeziumTable(KafkaConnection, TableSource):
    """A table that Debezium captures: the change events of one topic, in JSON or in Avro.

    The topic is the snapshot: it is read from its beginning, and the table is complete when the end that it had at the
    start is reached. For JSON without a schema, `columns` must be declared.

    Delivery: exactly once; aborted transactions are never read. Order: by offset within a partition, so the
    changes of one key in order, as long as no partitions are added. Tables of one cluster are read by one consumer and
    change together, but a transaction of the database may be split into several steps. Scale: tens of thousands of
    events a second, on one core.
    """

    type: Literal["debezium"] = "debezium"
    topic: str = Field(description="The topic of the table's change events.", examples=["shop.public.orders"])
    format: Literal["json", "avro"] = Field(
        "json", description="How events are written: JSON with or without its schema, or Avro with a `registry`."
    )
    registry: Registry | None = Field(None, description="Where the schemas of Avro events are looked up.")
    columns: Columns | None = Field(
        None,
        description="The table's columns, as DDL. Taken from the schema of the events when left out; then columns that "
        "are added at the source are added here too.",
        examples=["id bigint, amount decimal(10,2), at timestamp"],
    )
    timestamps: Literal["millis", "micros", "nanos"] = Field(
        "micros", description="The unit of numbers in timestamp columns, for events without a schema."
    )
    decimals: Literal["base64", "text"] = Field(
        "base64", description="The encoding of texts in decimal columns, for events without a schema."
    )
    unavailable: str = Field(
        "__debezium_unavailable_value",
        description="What the connector writes for an unchanged value that it does not know.",
        min_length=1,
    )
    on_error: Literal["fail", "skip"] = Field(
        "fail",
        description="Whether a message that cannot be parsed stops the table, or is skipped, logged and counted.",
    )

    refused_options: ClassVar[dict[str, str]] = {
        "auto.offset.reset": "a topic is read from its beginning",
        "enable.auto.commit": _OWN,
        "group.id": _OWN,
        "isolation.level": "it is always read_committed",
        "key.deserializer": "write `format`",
        "value.deserializer": "write `format`",
    }

    @model_validator(mode="after")
    def _registry_of_avro(self) -> Self:
        if (self.format == "avro") != (self.registry is not None):
            raise ValueError("`format: avro` and `registry` belong together")
        return self

    @property
    def label(self) -> str:
        return f"debezium {self.topic} at {self.cluster}"

    @property
    def group(self) -> str:
        return f"debezium {','.join(sorted(self.brokers))}"

    @property
    def declared(self) -> pa.Schema | None:
        """The columns in the options."""
        return None if self.columns is None else from_ddl(self.columns)

    def check(self, context: Context) -> None:
        """The cluster answers, accepts the login and has the topic."""
        cluster.Cluster(self.librdkafka_properties(context)).partitions([self.topic])

    def messages(self, context: Context) -> MessageParser:
        """What takes messages apart."""
        return (
            messages.JsonMessages() if self.registry is None else messages.AvroMessages(self.registry.schemas(context))
        )

    def shape(self, context: Context) -> TableShape:
        """The columns that are declared or that the newest event has, and those of the messages' keys."""
        return shape.shape_of(self, context)

    @classmethod
    def reader(
        cls,
        tables: Mapping[str, TableSource],
        shapes: Mapping[str, TableShape],
        after: Position | None,
        context: Context,
    ) -> TableReader:
        """One consumer of all topics."""
        own = {name: table for name, table in tables.items() if isinstance(table, cls)}
        _check_agreement(own)
        return reader.DebeziumReader(own, shapes, after, context)


def _check_agreement(tables: Mapping[str, DebeziumTable]) -> None:
    """One consumer has one login, and one position in each topic."""
    topics: dict[str, str] = {}
    first = next(iter(tables))
    for name, table in tables.items():
        if topics.setdefault(table.topic, name) != name:
            raise ProjectError(
                "topic-taken",
                f"tables '{topics[table.topic]}' and '{name}' read the same topic '{table.topic}'",
                hint="keep one of them; any number of views can read it",
            )
        if (table.security, table.options) != (tables[first].security, tables[first].options):
            raise ProjectError(
                "connections-differ",
                f"tables '{first}' and '{name}' reach {table.cluster} with different `security` or `options`",
                hint="tables of one cluster are read by one consumer: write the same for both",
            )
