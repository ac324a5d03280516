"""`type: opensearch`: documents of OpenSearch or Elasticsearch indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal, Self
from urllib.parse import urlsplit

import pyarrow as pa
from pydantic import AfterValidator, Field, model_validator

from headrace.core.capabilities import DescribesRewind, HoldsView, ReadsAllRows, Rewind
from headrace.core.context import Batch, Context
from headrace.core.errors import ProjectError
from headrace.core.lazy import lazy_modules
from headrace.core.records import nested
from headrace.core.schema import ddl_type
from headrace.core.sink import Delivery
from headrace.sinks import _templates as templates
from headrace.sinks._documents import as_json, document, require_columns
from headrace.sinks._http import refusal
from headrace.sinks._latest import last_of_each
from headrace.sinks._refused import ON_ERROR_DESCRIPTION, OnRefusal, Report, write_counted
from headrace.sinks._views import GONE, as_rows, refuse_options, view_key
from headrace.sinks.opensearch.bulk import BulkWrite
from headrace.systems.http.options import HttpOptions, HttpUrl

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql import functions as F
else:
    F = lazy_modules("pyspark.sql.functions")


def _template(value: str) -> str:
    templates.parts(value)
    return value


class OpenSearchSink(HttpOptions, HoldsView, DescribesRewind, ReadsAllRows):
    """Documents of OpenSearch or Elasticsearch indices, written in bulk.

    With `id` one document per value of these columns, replaced by the newest row; with `sequence` a row that is older
    than the document changes nothing. Without `id` every row is a separate document, whose id is made of flow,
    generation, batch and place. Delivery: idempotent; a repeated batch writes the same document ids. Order: none
    between documents; of several rows of a batch with one id the last is written, by `sequence` if there is one. Scale:
    one connection per task, requests of `batch_size` documents or `batch_bytes`; with `id` a shuffle per batch.
    Of a view, `id` is its key, and `index` may name columns of the key only: a document never changes its index.
    """

    type: Literal["opensearch"] = "opensearch"
    url: HttpUrl = Field(description="Address of the cluster.", examples=["https://127.0.0.1:9200"])
    index: Annotated[str, AfterValidator(_template)] = Field(
        description="Index to write to. {column} stands for a column's value, {column:yyyy.MM.dd} for that of a date.",
        examples=["orders", "orders-{created_at:yyyy.MM.dd}"],
        min_length=1,
    )
    id: list[str] = Field(
        default=[],
        description="Columns that make the document's id. Left out, that of a view is the view's key.",
        examples=[["order_id"]],
    )
    action: Literal["index", "update"] = Field(
        "index", description="`index` replaces a document, `update` changes the fields that the row has."
    )
    sequence: str | None = Field(
        None,
        description="Column with a whole number that grows with each newer version of a row; kept as the version of "
        "the document.",
        examples=["version"],
    )
    delete: str | None = Field(
        None, description="Boolean column: true deletes the document. It is not part of it.", examples=["is_deleted"]
    )
    batch_size: int = Field(1000, gt=0, description="Documents per request.")
    batch_bytes: int = Field(5_000_000, gt=0, description="Bytes per request.")
    on_error: OnRefusal = Field("dead_letter", description=ON_ERROR_DESCRIPTION)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name in ("sequence", "delete"):
            if getattr(self, name) is not None and not self.id:
                raise ValueError(f"`{name}` is about documents that are there already, so it needs `id`")
        if self.action == "update" and not self.id:
            raise ValueError("`action: update` changes documents that are there already, so it needs `id`")
        if self.action == "update" and self.sequence is not None:
            raise ValueError("the server compares versions only when it replaces documents: leave out `sequence`")
        return self

    @property
    def guarantee(self) -> Delivery:
        """Ids are derived from the rows."""
        return "idempotent"

    @property
    def target(self) -> str:
        return self.index

    @property
    def label(self) -> str:
        return f"opensearch {self.index} at {urlsplit(self.url).netloc}"

    def of_view(self, key: Sequence[str]) -> OpenSearchSink:
        """A document per row, whose id is the view's key."""
        refuse_options(self, "sequence", "delete")
        held = self.model_copy(update={"id": view_key(self, "id", self.id, key)})
        for name in templates.columns_of(self.index):
            if name not in key:
                raise ProjectError(
                    "sink-view-key",
                    f"`index` of sink {self.label} names the column '{name}', which is not part of the view's key",
                    hint=f"a row whose '{name}' changes would stay in the old index: name columns of the key, or none",
                )
        return held

    def check(self, context: Context) -> None:
        """The cluster answers and accepts the login. It creates indices when they are first written."""
        client = self.client(self.label, self.url, context)
        answer = client.send("GET", "/")
        if not answer.ok:
            raise refusal(client.label, answer)

    def check_rows(self, context: Context, columns: Sequence[str], output: str, schema: pa.Schema | None) -> None:
        """All named columns exist; updates need an id to replace earlier rows."""
        named = {"index": templates.columns_of(self.index), "id": self.id}
        named |= {name: [getattr(self, name)] for name in ("sequence", "delete") if getattr(self, name) is not None}
        for option, names in named.items():
            require_columns(self.label, option, names, columns)
        if output == "update" and not self.id:
            raise ProjectError(
                "sink-needs-key",
                f"the flow's output is 'update', and sink {self.label} has no `id` to replace earlier rows by",
                hint="set id to the columns that identify a row, e.g. those after GROUP BY",
            )
        if schema is not None:
            for name, wanted in ((self.sequence, pa.types.is_integer), (self.delete, pa.types.is_boolean)):
                if name is not None and not wanted(schema.field(name).type):
                    raise ProjectError(
                        "sink-column-type",
                        f"column '{name}' of sink {self.label} is {ddl_type(schema.field(name).type)}",
                        hint="`sequence` is a whole number, `delete` a boolean: cast it in SQL",
                    )

    def items(self, rows: DataFrame, batch: Batch) -> DataFrame:
        """Lines of the bulk interface: `action`, null for a row without id or index, and `content`, null to delete."""
        columns = [name for name in rows.columns if name != self.delete]
        records = rows.select(
            templates.filled(self.index).alias("index"),
            self._id().alias("id"),
            self._content(columns).alias("content"),
            (F.col(f"`{self.sequence}`").cast("bigint") if self.sequence else F.lit(None).cast("bigint")).alias("seq"),
            (F.coalesce(F.col(f"`{self.delete}`"), F.lit(False)) if self.delete else F.lit(False)).alias("gone"),
        )
        if self.id:
            records = last_of_each(records, ["index", "id"], "seq" if self.sequence else None)
        else:
            # in the order of their contents rows have the same places whenever the batch is run again
            places = F.concat_ws("|", F.lit(f"{batch.flow}|{batch.generation}|{batch.sink}|{batch.batch_id}"), "place")
            records = records.sortWithinPartitions("index", "content").withColumn(
                "place", F.monotonically_increasing_id()
            )
            records = records.withColumn("id", F.sha2(F.concat(places.cast("binary"), "content"), 256))
        return records.select(self._action().alias("action"), F.when(~F.col("gone"), F.col("content")).alias("content"))

    def write_batch(self, rows: DataFrame, batch: Batch) -> None:
        write = BulkWrite(
            client=self.client(self.label, self.url, batch.context),
            batch_size=self.batch_size,
            batch_bytes=self.batch_bytes,
            versioned=self.sequence is not None,
            report=Report.of(batch, self.label, self.on_error),
        )
        write_counted(self.items(rows, batch), write, batch)

    def write_changes(self, changes: DataFrame, key: Sequence[str], batch: Batch) -> None:
        self.of_view(key).model_copy(update={"delete": GONE}).write_batch(as_rows(changes), batch)

    def rewind_effect(self, rewind: Rewind, replace: bool) -> str:
        effect = "replace the documents with the same id" if self.id else "are added to those already written"
        cannot = "; documents written since cannot be removed" if replace else ""
        return f"{rewind.read_again}: their rows {effect}{cannot}"

    def _id(self) -> Column:
        if not self.id:
            return F.lit(None).cast("string")
        parts = [F.col(f"`{name}`").cast("string") for name in self.id]
        if len(parts) == 1:
            return parts[0]
        # so that ("a|b", "c") and ("a", "b|c") are two
        escaped = [F.regexp_replace(part, r"([|\\])", r"\\$1") for part in parts]
        joined = [piece for part in escaped for piece in (F.lit("|"), part)]
        return F.concat(*joined[1:])

    def _content(self, columns: Sequence[str]) -> Column:
        if self.action == "index":
            return document(columns, nulls=False)
        return as_json(F.struct(nested(columns).alias("doc"), F.lit(True).alias("doc_as_upsert")), nulls=True)

    def _action(self) -> Column:
        place = [F.col("index").alias("_index"), F.col("id").alias("_id")]
        if self.sequence:
            place += [F.col("seq").alias("version"), F.lit("external_gte").alias("version_type")]
        elif self.action == "update":
            place.append(F.lit(5).alias("retry_on_conflict"))
        write = F.to_json(F.struct(F.struct(*place).alias(self.action)))
        remove = F.to_json(F.struct(F.struct(*place[: 4 if self.sequence else 2]).alias("delete")))
        whole = F.col("index").isNotNull() & F.col("id").isNotNull()
        if self.sequence:
            whole = whole & F.col("seq").isNotNull()
        return F.when(whole, F.when(F.col("gone"), remove).otherwise(write)).cast("binary")
