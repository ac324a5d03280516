"""A flow's rows as Kafka records: columns `value`, `key` and optionally `headers` and `topic`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.context import Batch, Context
from headrace.core.endpoints import OLD, OP, Op
from headrace.core.errors import ProjectError
from headrace.core.format import EncodesNatively, Format
from headrace.core.processor import Batches
from headrace.core.records import encode_rows, nested
from headrace.core.runtime.lazy import lazy_modules
from headrace.sinks._routed import names_many
from headrace.sinks._views import GONE, as_rows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql import functions as F
else:
    F = lazy_modules("pyspark.sql.functions")

_KEY, _ROW = "_headrace_key", "_headrace_row"
_NO_KEY = ProjectError(
    "kafka-key-null",
    "the key of a view's row is null: such a record could be neither replaced nor deleted",
    hint="write `key_format: json`, which has a null, or give the column a value in SQL: coalesce",
)
HEADERS_TYPE = "array<struct<key:string,value:binary>>"


def to_records(
    rows: DataFrame,
    format: Format,
    key: Sequence[str],
    key_format: Format | None,
    record_columns: Mapping[str, str],
    context: Context,
    left_out: Sequence[str] = (),
) -> DataFrame:
    """`record_columns` maps columns of records (`headers`, `topic`) to columns of the flow.

    Those leave the value, and so do those that are `left_out`; key columns stay in it otherwise.
    """
    keyed = _with_key(rows, key, key_format, context)
    own = [F.col(f"`{name}`") for name in rows.columns if name not in {*record_columns.values(), *left_out}]
    extra = [F.col(f"`{column}`").alias(f"_headrace_{name}") for name, column in record_columns.items()]
    staged = keyed.select(*own, F.col(_KEY), *extra)
    encoded = encode_rows(staged, format, context, keep=[_KEY, *(f"_headrace_{name}" for name in record_columns)])
    types = dict(_TYPES)
    if "topic" in record_columns and names_many(rows, record_columns["topic"]):
        types["topic"] = "array<string>"
    headers_or_topic = [F.col(f"_headrace_{name}").cast(types[name]).alias(name) for name in record_columns]
    return encoded.select("value", F.col(_KEY).alias("key"), *headers_or_topic)


@dataclass(frozen=True)
class ArrowRecords:
    """Rows whose columns are a record's already, as records. Pickled to the tasks."""

    value: str
    key: str | None
    topic: str | None
    """The column that names the topic, or a list of topics."""
    otherwise: str
    """The topic of rows that name none."""
    output: pa.Schema

    @staticmethod
    def of(given: pa.Schema, value: str, key: str | None, topic: str | None, otherwise: str) -> ArrowRecords:
        """For rows with these columns."""
        named = [] if topic is None else [("topic", given.field(topic).type)]
        return ArrowRecords(
            value, key, topic, otherwise, pa.schema([("value", pa.binary()), ("key", pa.binary()), *named])
        )

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            key = pa.nulls(batch.num_rows, pa.binary()) if self.key is None else batch.column(self.key)
            columns = [batch.column(self.value).cast(pa.binary()), key.cast(pa.binary())]
            if self.topic is not None:
                columns.append(self._topics(batch.column(self.topic)))
            yield pa.RecordBatch.from_arrays(columns, schema=self.output)

    def _topics(self, named: pa.Array) -> pa.Array:
        if not pa.types.is_list(named.type):
            return named.fill_null(self.otherwise)
        fewest = pc.min(pc.list_value_length(named)).as_py()
        if fewest and not named.null_count and not named.flatten().null_count:
            return named
        topics = [[one or self.otherwise for one in names or (None,)] for names in named.to_pylist()]
        return pa.array(topics, named.type)


_TYPES = {"headers": HEADERS_TYPE, "topic": "string", GONE: "boolean"}


def to_upserts(
    changes: DataFrame, format: Format, key: Sequence[str], key_format: Format | None, context: Context
) -> DataFrame:
    """Changes of a view as records: the row as it is now, or no value when there is none any more."""
    made = to_records(as_rows(changes), format, key, key_format, {GONE: GONE}, context)
    refused = F.raise_error(F.lit(str(_NO_KEY))).cast("binary")
    return made.select(F.when(~F.col(GONE), F.col("value")).alias("value"), F.coalesce("key", refused).alias("key"))


def to_envelopes(
    changes: DataFrame, format: Format, key: Sequence[str], key_format: Format | None, batch: Batch
) -> DataFrame:
    """Changes of a view as records in Debezium's form. Its times are left out: a replayed batch would have others."""
    names = [name for name in changes.columns if name not in (OP, OLD)]
    gone, added = (F.col(OP) == int(op) for op in (Op.DELETE, Op.INSERT))
    letter = F.when(gone, "d").when(added, "c").otherwise("u")
    source = {"flow": batch.flow, "generation": batch.generation, "batch": batch.batch_id}
    envelope = F.struct(
        F.when(~added, nested(names, F.col(OLD))).alias("before"),
        F.when(~gone, nested(names)).alias("after"),
        F.struct(*(F.lit(value).alias(name) for name, value in source.items())).alias("source"),
        letter.alias("op"),
    )
    assert isinstance(format, EncodesNatively), "the format is JSON"
    value = format.native_encode(envelope)
    keyed = _with_key(changes, key, key_format, batch.context)
    return keyed.select(value.alias("value"), F.col(_KEY).alias("key"))


def _with_key(rows: DataFrame, key: Sequence[str], key_format: Format | None, context: Context) -> DataFrame:
    if not key:
        return rows.select("*", F.lit(None).cast("binary").alias(_KEY))
    if key_format is None:
        return rows.select("*", _plain_key(rows, key[0]).alias(_KEY))
    if isinstance(key_format, EncodesNatively):
        return rows.select("*", key_format.native_encode(nested(key)).cast("binary").alias(_KEY))
    # The key's fields bear the names of columns that the value needs as well: these wait in a struct meanwhile,
    # by number, since not every name of a column may be that of a field.
    waiting = F.struct(*(F.col(f"`{name}`").alias(f"c{number}") for number, name in enumerate(rows.columns)))
    packed = rows.select(*(F.col(f"`{name}`") for name in key), waiting.alias(_ROW))
    encoded = encode_rows(packed, key_format, context, keep=[_ROW])
    back = [F.col(f"{_ROW}.c{number}").alias(name) for number, name in enumerate(rows.columns)]
    return encoded.select(*back, F.col("value").alias(_KEY))


def _plain_key(rows: DataFrame, name: str) -> Column:
    column = F.col(f"`{name}`")
    # other types than bytes as their text: a number's key is its digits, as other producers write it
    return column if dict(rows.dtypes)[name] == "binary" else column.cast("string").cast("binary")


def nested_schema(schema: pa.Schema) -> pa.Schema:
    """The schema in which `driver.name` is the field `name` of the struct `driver`, as records.nested builds it."""
    tree: dict[str, object] = {}
    for field in schema:
        *parents, leaf = field.name.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})  # type: ignore[assignment]
        node[leaf] = field.type
    return pa.schema(_fields(tree))


def _fields(tree: Mapping[str, object]) -> list[tuple[str, object]]:
    return [(name, pa.struct(_fields(part)) if isinstance(part, dict) else part) for name, part in tree.items()]
