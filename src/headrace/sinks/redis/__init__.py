"""`type: redis`: keys of a Redis database."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Literal, Self

import pyarrow as pa
from pydantic import AfterValidator, Field, model_validator

from headrace.core.capabilities import DescribesRewind, HoldsView, ReadsAllRows, Rewind
from headrace.core.context import Batch, Context
from headrace.core.errors import ProjectError
from headrace.core.options.durations import Duration
from headrace.core.runtime.lazy import lazy_modules
from headrace.core.sink import Delivery
from headrace.sinks import _templates as templates
from headrace.sinks._documents import document, require_columns
from headrace.sinks._latest import in_order_of_each, last_of_each
from headrace.sinks._refused import ON_ERROR_DESCRIPTION, OnRefusal, Report, write_counted
from headrace.sinks._views import GONE, as_rows, refuse_options, view_key
from headrace.systems.redis.connection import RedisConnection

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql import functions as F

    from headrace.sinks.redis import merge as redis_merge
    from headrace.sinks.redis import write as redis_write
    from headrace.systems.redis import client as redis_client
    from headrace.systems.redis.client import RedisClient
else:
    F = lazy_modules("pyspark.sql.functions")
    redis_merge, redis_write, redis_client = lazy_modules(
        "headrace.sinks.redis.merge", "headrace.sinks.redis.write", "headrace.systems.redis.client"
    )

_NESTED = ("array", "map", "struct")


def _template(value: str) -> str:
    if not templates.columns_of(value):
        raise ValueError(f"'{value}' is the same for all rows; write the column, e.g. orders:{{order_id}}")
    return value


class RedisSink(RedisConnection, HoldsView, DescribesRewind, ReadsAllRows):
    """Keys of a Redis database: the row as JSON, as a hash, or one column of it; or changes to what keys hold.

    Delivery: idempotent; a repeated batch sets the same keys to the same values, and a `ttl` starts again.
    Order: of several rows of a batch with one key the last is written, by `sequence` if there is one; a later batch
    replaces what an earlier one wrote, also when its `sequence` is smaller. With `merge` all rows of a key are taken,
    in that order: of each field the last one stays, or the first where `keep` says so. Scale: one connection per task,
    `batch_size` keys per transaction, a shuffle per batch; a single server or primary, not a Redis cluster.
    Of a view, `key` names all columns of its key, and a row that is deleted takes its key with it; rows that fill `key`
    alike share one.
    """

    type: Literal["redis"] = "redis"
    key: Annotated[str, AfterValidator(_template)] = Field(
        description="Key of a row; {column} stands for a column's value.", examples=["orders:{order_id}"]
    )
    value: Literal["json", "hash", "column"] = Field(
        "json",
        description="What a key holds: the row as a JSON text, a hash with one field per column (nulls left out, "
        "nested ones as JSON), or the text or bytes of `column`.",
    )
    column: str | None = Field(
        None,
        description="Column with the value. A null deletes the key. Of a hash it is a map, whose entries are the "
        "fields; with `merge` of JSON the text of an object.",
        examples=["payload"],
    )
    merge: bool = Field(
        False,
        description="Change what a key holds instead of replacing it: fields of the hash, or of the JSON object, that "
        "the row does not have stay as they are.",
    )
    nulls: Literal["keep", "delete"] = Field(
        "keep", description="With `merge`: whether a null keeps its field, or deletes it."
    )
    keep: list[str] = Field(
        default=[],
        description="With `merge`: fields that are set only where there are none, so that what came first stays.",
        examples=[["first_seen"]],
    )
    unset: list[str] = Field(
        default=[], description="Values of fields in `keep` that count as none.", examples=[["", "0"]]
    )
    sequence: str | None = Field(
        None,
        description="Column that decides which of two rows of a batch with one key is newer.",
        examples=["updated_at"],
    )
    delete: str | None = Field(
        None, description="Boolean column: true deletes the key. It is not part of the value.", examples=["is_deleted"]
    )
    ttl: Duration | None = Field(None, description="How long a key lives after it was written.", examples=["1h"])
    batch_size: int = Field(1000, gt=0, description="Keys per transaction.")
    timeout: Duration = Field(timedelta(seconds=10), description="How long to wait for one answer.")
    retry_for: Duration = Field(
        timedelta(seconds=30),
        description="How long writing is retried while the server is unavailable or busy; then the flow is degraded, "
        "and resumes when the server is back.",
    )
    on_error: OnRefusal = Field("dead_letter", description=ON_ERROR_DESCRIPTION)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.value == "column" and self.column is None:
            raise ValueError("`value: column` needs `column`")
        if self.value == "json" and self.column is not None and not self.merge:
            raise ValueError("`column` is for `value: column`, for hashes, and for JSON with `merge`")
        if self.merge and self.value == "column":
            raise ValueError("`merge` is about fields: write `value: hash` or `value: json`")
        for name, given in {"nulls": self.nulls == "delete", "keep": self.keep, "unset": self.unset}.items():
            if given and not self.merge:
                raise ValueError(f"`{name}` needs `merge`: without it all fields are replaced")
        return self

    @property
    def guarantee(self) -> Delivery:
        """Keys are derived from the rows."""
        return "idempotent"

    @property
    def target(self) -> str:
        return self.key

    @property
    def label(self) -> str:
        return f"redis {self.key} at {self.address}"

    def of_view(self, key: Sequence[str]) -> RedisSink:
        """A key per row: the template has all columns of the view's key, and no others."""
        refuse_options(self, "sequence", "delete", "ttl", "merge")
        view_key(self, "key", [*dict.fromkeys(templates.columns_of(self.key))], key)
        return self

    def check(self, context: Context) -> None:
        """The server answers and accepts the login."""
        self.client(context).call(lambda connection: connection.ping())

    def check_rows(self, context: Context, columns: Sequence[str], output: str, schema: pa.Schema | None) -> None:
        """All named columns exist."""
        require_columns(self.label, "key", templates.columns_of(self.key), columns)
        for option in ("column", "sequence", "delete"):
            name = getattr(self, option)
            require_columns(self.label, option, [name] if name else [], columns)
        if schema is None:
            return
        if self.delete and not pa.types.is_boolean(schema.field(self.delete).type):
            self._refuse_type(schema, self.delete, "`delete` is a boolean: cast it in SQL")
        if self.column and self._hash and not pa.types.is_map(schema.field(self.column).type):
            self._refuse_type(schema, self.column, "the fields of a hash are a map, e.g. map('name', name)")

    def _refuse_type(self, schema: pa.Schema, name: str, hint: str) -> None:
        found = schema.field(name).type
        raise ProjectError("sink-column-type", f"column '{name}' of sink {self.label} is {found}", hint=hint)

    def client(self, context: Context) -> RedisClient:
        """A client with these options, fit to be sent to the workers."""
        server = self.server(self.label, context)
        return redis_client.RedisClient(server, self.timeout.total_seconds(), self.retry_for.total_seconds())

    def entries(self, rows: DataFrame) -> DataFrame:
        """`key`, `gone`, `value`, and for hashes a column per field or the map `fields`: one row per key, or all."""
        columns = [name for name in rows.columns if name != self.delete]
        gone: Column = F.coalesce(F.col(f"`{self.delete}`"), F.lit(False)) if self.delete else F.lit(False)
        value, fields = document(columns, nulls=True), []
        if self.column is not None:
            gone = gone | F.col(f"`{self.column}`").isNull()
        if self._hash:
            # of a hash the JSON is only needed for a dead letter
            value = F.when(templates.filled(self.key).isNull(), value)
            fields = self._fields(rows, columns)
        elif self.column is not None:
            value = _text(rows, self.column)
        order = [F.col(f"`{self.sequence}`").alias("order")] if self.sequence else []
        key = templates.filled(self.key).alias("key")
        made = rows.select(key, gone.alias("gone"), value.alias("value"), *fields, *order)
        return (in_order_of_each if self.merge else last_of_each)(made, ["key"], "order" if self.sequence else None)

    def _fields(self, rows: DataFrame, columns: Sequence[str]) -> list[Column]:
        if self.column is not None:
            texts = F.transform_values(F.col(f"`{self.column}`"), lambda _, value: value.cast("string").cast("binary"))
            return [texts.alias("fields")]
        return [_text(rows, name).alias(f"field_{number}") for number, name in enumerate(columns)]

    def write_batch(self, rows: DataFrame, batch: Batch) -> None:
        columns = tuple(name for name in rows.columns if name != self.delete) if self.column is None else ()
        ttl_ms = round(self.ttl.total_seconds() * 1000) if self.ttl else None
        merging = redis_merge.Merging(
            not self._hash, self.nulls == "delete", frozenset(self.keep), tuple(self.unset), ttl_ms
        )
        write = redis_write.RedisWrite(
            client=self.client(batch.context),
            fields=columns if self._hash else None,
            ttl_ms=ttl_ms,
            batch_size=self.batch_size,
            report=Report.of(batch, self.label, self.on_error),
            merging=merging if self.merge else None,
        )
        write_counted(self.entries(rows), write, batch)

    def write_changes(self, changes: DataFrame, key: Sequence[str], batch: Batch) -> None:
        self.of_view(key).model_copy(update={"delete": GONE}).write_batch(as_rows(changes), batch)

    def rewind_effect(self, rewind: Rewind, replace: bool) -> str:
        if self.merge:
            return f"{rewind.read_again}: their rows change the same keys again, on top of all that was written since"
        cannot = "; keys written since stay" if replace else ""
        return f"{rewind.read_again}: their rows replace the values of the same keys{cannot}"

    @property
    def _hash(self) -> bool:
        return self.value == "hash"


def _text(rows: DataFrame, name: str) -> Column:
    column, kind = F.col(f"`{name}`"), dict(rows.dtypes)[name]
    if kind == "binary":
        return column
    if kind.startswith(_NESTED):
        return F.when(column.isNotNull(), F.to_json(column).cast("binary"))
    return column.cast("string").cast("binary")
