"""`type: kafka`: records of a Kafka topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import pyarrow as pa
from pydantic import BeforeValidator, Field, PrivateAttr, model_validator

from headrace.core.capabilities import (
    AppendsAfterSwitch,
    Candidate,
    DescribesRewind,
    HoldsView,
    ReadableAsStream,
    RealTimeSink,
    Rewind,
    WritesStage,
    candidate_refused,
)
from headrace.core.component import Options
from headrace.core.context import Batch, Context
from headrace.core.errors import ProjectError, did_you_mean
from headrace.core.format import EncodesNatively, Format
from headrace.core.kinds import KindOf, kinds
from headrace.core.places import ANY, Location
from headrace.core.python_stage import PythonStage
from headrace.core.runtime.lazy import lazy_modules
from headrace.core.sink import Delivery
from headrace.sinks._routed import or_else, row_for_each
from headrace.sinks._views import refuse_options, view_key
from headrace.systems.kafka.connection import KafkaConnection, refused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from headrace.sinks.kafka import fixed_tasks as kafka_tasks
    from headrace.sinks.kafka import records as kafka_records
    from headrace.sinks.kafka import transactions as kafka_transactions
    from headrace.sinks.kafka import writers as kafka_writers
    from headrace.sinks.kafka.records import ArrowRecords
    from headrace.systems.kafka import cluster as kafka_cluster
else:
    F = lazy_modules("pyspark.sql.functions")
    kafka_tasks, kafka_records, kafka_transactions, kafka_writers, kafka_cluster = lazy_modules(
        "headrace.sinks.kafka.fixed_tasks",
        "headrace.sinks.kafka.records",
        "headrace.sinks.kafka.transactions",
        "headrace.sinks.kafka.writers",
        "headrace.systems.kafka.cluster",
    )


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _named(value: Any) -> Any:
    return {"type": value} if isinstance(value, str) else value


AnyFormat = Annotated[Format, KindOf("formats"), BeforeValidator(_named)]
_GUARANTEED = "it follows from `delivery`"


class NewTopic(Options):
    """How a missing topic is created."""

    partitions: int = Field(1, description="Number of partitions.", gt=0)
    replication: int | None = Field(None, description="Copies of each partition; the cluster's default if left out.")
    settings: dict[str, str] = Field(
        default={}, description="Further settings of the topic.", examples=[{"cleanup.policy": "compact"}]
    )


class KafkaSink(
    KafkaConnection, RealTimeSink, HoldsView, DescribesRewind, AppendsAfterSwitch, ReadableAsStream, WritesStage
):
    """Records in one Kafka topic, or in topics that a column names.

    Delivery with `delivery: at_least_once`: at least once; Spark's Kafka writer may repeat rows after a crash.
    Delivery with `delivery: exactly_once`: exactly once for `read_committed` readers; one transaction per writer holds
    the rows and the number of the batch. It holds when a repeated batch has the same rows (no clock, no randomness) and
    the flow restarts before the cluster forgets its marks (offsets.retention.minutes, 7 days).
    Order: rows with equal keys keep the order in which one task made them. Scale: exactly_once uses one producer and
    one transactional id, about 0.15 s per batch, for each task that reads a partition of Kafka or holds a part of the
    state; where rows come in another way, or from more than four times as many tasks as the topic has partitions, for
    each partition that it had when the generation began, and rows are brought together by key.
    Of a view, each change is a record by its key, at most one per key and batch; `changes` says in which form. A new
    generation writes all rows again; keys that only the one before had stay.
    """

    type: Literal["kafka"] = "kafka"
    topic: str = Field(description="Topic to write to.", examples=["order-counts"], min_length=1)
    topic_column: str | None = Field(
        None,
        description="Column that names the topic of each row (null: `topic`), or all its topics in a list; it is not "
        "part of the value.",
    )
    format: AnyFormat = Field(
        {"type": "json"},
        description="How values are laid out. An alias such as `driver.name` fills a nested field.",
        examples=["json", {"type": "protobuf", "descriptors": "schemas/rides.desc", "message": "rides.Count"}],
        validate_default=True,
    )
    key: str | list[str] | None = Field(
        None,
        description="Column or columns that make the key; they stay in the value. Left out, that of a view is the "
        "view's own.",
        examples=["order_id"],
    )
    key_in_value: bool = Field(True, description="Whether the columns of the key are part of the value too.")
    key_format: AnyFormat | None = Field(
        None, description="How keys are laid out. Left out: one column as its bytes or text, several as a JSON object."
    )
    changes: Literal["upsert", "debezium"] = Field(
        "upsert",
        description="How changes of a view are written. `upsert`: the row as it is now, or no value (a tombstone) when "
        "it is deleted. `debezium`: a JSON object with `before`, `after`, `op` (c, u or d) and `source` (flow, "
        "generation and batch).",
    )
    headers_column: str | None = Field(
        None,
        description="Column of type array<struct<key:string,value:binary>> with the headers; not part of the value.",
    )
    create: NewTopic | None = Field(
        None, description="Create the topic when it does not exist.", examples=[{"partitions": 4}]
    )
    delivery: Literal["at_least_once", "exactly_once"] = Field(
        "at_least_once", description="exactly_once writes in transactions; real-time flows can only do at_least_once."
    )

    refused_options: ClassVar[dict[str, str]] = {
        "acks": _GUARANTEED,
        "enable.idempotence": _GUARANTEED,
        "key.serializer": "write `key_format`",
        "partitioner.class": "records go where Kafka's default partitioner puts their key",
        "transactional.id": _GUARANTEED,
        "value.serializer": "write `format`",
    }

    _of_view: bool = PrivateAttr(False)

    @model_validator(mode="after")
    def _key_for_format(self) -> Self:
        if self.key_format is not None and not self.key_columns:
            raise refused("kafka-key", "`key_format` needs `key`: the columns that make the key")
        if self.changes == "debezium" and self.format.kind() != "json":
            raise refused("kafka-changes", "`changes: debezium` is JSON: leave out `format`, or write `json`")
        return self

    @property
    def guarantee(self) -> Delivery:
        return self.delivery

    @property
    def realtime(self) -> bool:
        """Transactions end with a batch, real-time flows write without end."""
        return self.delivery == "at_least_once"

    @property
    def target(self) -> str:
        return self.topic

    @property
    def label(self) -> str:
        return f"kafka {self.topic} at {self.cluster}"

    def places(self, context: Context, texts: Mapping[str, Sequence[str]]) -> tuple[Location, ...]:
        named = () if self.topic_column is None else texts.get(self.topic_column, (ANY,))
        return tuple(Location(f"kafka {self.cluster}", topic) for topic in (self.topic, *named))

    @property
    def key_columns(self) -> list[str]:
        return [self.key] if isinstance(self.key, str) else list(self.key or [])

    def of_view(self, key: Sequence[str]) -> KafkaSink:
        """Records by the key of the view; only a journal of what happened can do without one."""
        refuse_options(self, "topic_column", "headers_column")
        if not self.key_in_value:
            raise ProjectError(
                "sink-view-option",
                f"sink {self.label} holds a view, whose rows are whole: `key_in_value` has no meaning",
                hint="leave it out",
            )
        update: dict[str, Any] = {}
        if key or self.changes == "upsert":
            update["key"] = view_key(self, "key", self.key_columns, key)
        if self.changes == "debezium":
            update["format"] = self.format.model_copy(update={"nulls": "keep"})
            # as Debezium has it: an object also of one column
            update["key_format"] = self.key_format or _json(nulls="keep")
        held = self.model_copy(update=update)
        held._of_view = True
        return held

    def writer_options(self, context: Context) -> dict[str, str]:
        """These options as options of Spark's writer."""
        options = {f"kafka.{name}": value for name, value in self.java_properties(context).items()}
        options |= {"kafka.acks": "all", "kafka.enable.idempotence": "true"}
        # The option `topic` would win over a column of that name.
        return options if self.topic_column else {**options, "topic": self.topic}

    def check(self, context: Context) -> None:
        """The cluster answers, accepts the login and has the topic, which is created if `create` is set."""
        cluster = kafka_cluster.Cluster(self.librdkafka_properties(context))
        if self.create is not None and not cluster.has(self.topic):
            cluster.create(self.topic, self.create.partitions, self.create.replication, self.create.settings)
        cluster.partitions([self.topic])

    def check_rows(
        self,
        context: Context,
        columns: Sequence[str],
        output: str,  # every mode will do: an updated row is a newer record
        schema: pa.Schema | None,
    ) -> None:
        """Key, headers and topic are columns of the flow, and the formats can encode every column."""
        if self.changes == "debezium" and not self._of_view:
            raise ProjectError(
                "kafka-changes",
                f"sink {self.label} is to write changes, and the flow has only new rows: it is no view",
                hint="leave out `changes`; a flow whose SQL reads tables is a view",
            )
        for name in [*self.key_columns, *self._record_columns().values()]:
            if name not in columns:
                raise ProjectError(
                    "unknown-column",
                    f"sink {self.label} uses the column '{name}', which the flow does not have",
                    hint=did_you_mean(name, columns, label="columns of the flow"),
                )
        if schema is not None:
            no_values = {*self._record_columns().values(), *self._left_out()}
            _check_format(self.format, context, [name for name in columns if name not in no_values], schema)
            key_format = self._key_format()
            if key_format is not None:
                _check_format(key_format, context, self.key_columns, schema)

    def records(self, rows: DataFrame, context: Context) -> DataFrame:
        """The rows in the form that Spark's Kafka writer reads."""
        made = kafka_records.to_records(
            rows, self.format, self.key_columns, self._key_format(), self._record_columns(), context, self._left_out()
        )
        if self.topic_column is None:
            return made
        # a transaction takes a row once for all its topics
        return or_else(made if self.delivery == "exactly_once" else row_for_each(made, "topic"), "topic", self.topic)

    def write_batch(self, rows: DataFrame, batch: Batch) -> None:
        self._write(self.records(rows, batch.context), rows, batch)

    def accepts_stage(self, schema: pa.Schema) -> bool:
        """Whether a transaction writes columns of the rows as they are."""
        return self.delivery == "exactly_once" and self._arrow_records(schema) is not None

    def write_stage(self, stage: PythonStage, batch: Batch) -> int:
        records = self._arrow_records(stage.schema)
        assert records is not None, "accepts_stage was called before"
        return self._write_once(stage.then(records, records.output), kafka_tasks.fixed_tasks(stage.rows), batch)

    def write_changes(self, changes: DataFrame, key: Sequence[str], batch: Batch) -> None:
        held = self.of_view(key)
        held._write(held.change_records(changes, batch), changes, batch)

    def change_records(self, changes: DataFrame, batch: Batch) -> DataFrame:
        """Changes of a view in the form that Spark's Kafka writer reads."""
        if self.changes == "debezium":
            return kafka_records.to_envelopes(changes, self.format, self.key_columns, self._key_format(), batch)
        return kafka_records.to_upserts(changes, self.format, self.key_columns, self._key_format(), batch.context)

    def _write(self, records: DataFrame, rows: DataFrame, batch: Batch) -> None:
        """Write the records, which each task makes of its rows."""
        if self.delivery == "exactly_once":
            self._write_once(PythonStage.of(records), kafka_tasks.fixed_tasks(rows), batch)
        else:
            records.write.format("kafka").options(**self.writer_options(batch.context)).save()

    def rewind_effect(self, rewind: Rewind, replace: bool) -> str:
        cannot = "; records written since cannot be removed" if replace else ""
        return f"{rewind.read_again}: their rows are written to the topic again{cannot}"

    def candidate_effect(self, candidate: Candidate) -> str:
        """Records stay. Those of a view belong together: a mixture of two definitions is no view."""
        if self._of_view:
            raise candidate_refused(self, candidate)
        return super().candidate_effect(candidate)

    def writer(self, rows: DataFrame, context: Context) -> DataStreamWriter:
        """Spark's own streaming writer."""
        if self.delivery == "exactly_once":
            raise ProjectError(
                "kafka-realtime-delivery",
                f"sink {self.label}: a real-time flow cannot write exactly once to Kafka",
                hint="write `delivery: at_least_once`, or run the flow with `mode: micro_batch`",
            )
        return self.records(rows, context).writeStream.format("kafka").options(**self.writer_options(context))

    def _write_once(self, records: PythonStage, tasks: list[int] | None, batch: Batch) -> int:
        properties = self.librdkafka_properties(batch.context)
        identity = f"headrace.{batch.flow}.{batch.generation}.{batch.sink}"
        write = kafka_transactions.TransactionalWrite(properties, identity, self.topic, batch.batch_id)
        sharing = kafka_writers.pinned_sharing(
            batch,
            None if tasks is None else len(tasks),
            partitions=lambda: self._partitions(batch.context),
            begun=lambda writers: replace(write, partitions=writers).is_begun(),
        )
        write = replace(write, partitions=sharing.writers)
        if sharing.by_task and tasks is not None:
            shares = records.finish_with(replace(write, tasks=tuple(tasks)), kafka_transactions.SUMMARY).collect()
        else:
            # Decided by content alone, so that a replayed row goes to the same writer, and a key always to one.
            writer = F.expr(f"cast(pmod(xxhash64(coalesce(key, value)), {sharing.writers}) as int)")
            shuffled = records.finish().withColumn("writer", writer).repartitionById(sharing.writers, F.col("writer"))
            shares = shuffled.mapInArrow(write, kafka_transactions.SUMMARY).collect()
        batch.tally.add_bytes(batch.flow, batch.sink, sum(row["bytes"] for row in shares))
        return sum(row["taken"] for row in shares)

    def _arrow_records(self, given: pa.Schema) -> ArrowRecords | None:
        """Makes records of rows in Arrow; None where that takes more than naming their columns."""
        values = [name for name in given.names if name not in {*self._record_columns().values(), *self._left_out()}]
        plain = self.format.verbatim and self.key_format is None and self.headers_column is None
        if self._of_view or not plain or len(values) != 1 or len(self.key_columns) > 1:
            return None
        key = self.key_columns[0] if self.key_columns else None
        texts = all(_is_text(given.field(name).type) for name in (values[0], *self.key_columns))
        return kafka_records.ArrowRecords.of(given, values[0], key, self.topic_column, self.topic) if texts else None

    def _partitions(self, context: Context) -> int:
        return kafka_cluster.Cluster(self.librdkafka_properties(context)).partitions([self.topic])[self.topic]

    def _record_columns(self) -> dict[str, str]:
        columns = {"headers": self.headers_column, "topic": self.topic_column}
        return {name: column for name, column in columns.items() if column is not None}

    def _left_out(self) -> list[str]:
        return [] if self.key_in_value else self.key_columns

    def _key_format(self) -> Format | None:
        if self.key_format is None and len(self.key_columns) > 1:
            return _json()
        return self.key_format


def _json(**options: str) -> Format:
    return kinds("formats")["json"](**options)  # type: ignore[return-value]  # the registry knows only Component


def _check_format(format: Format, context: Context, columns: Sequence[str], schema: pa.Schema) -> None:
    if not isinstance(format, EncodesNatively):
        format.encoder(context, kafka_records.nested_schema(pa.schema([schema.field(name) for name in columns])))
