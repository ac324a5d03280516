"""`type: influxdb`: points of an InfluxDB measurement."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote, urlencode, urlsplit

import msgspec
import pyarrow as pa
from pydantic import Field

from headrace.core.capabilities import AppendsAfterSwitch, DescribesRewind, ReadsAllRows, Rewind
from headrace.core.context import Batch, Context
from headrace.core.errors import ProjectError, did_you_mean
from headrace.core.schema import ddl_type
from headrace.core.sink import Delivery
from headrace.sinks._documents import require_columns
from headrace.sinks._http import refusal
from headrace.sinks._refused import ON_ERROR_DESCRIPTION, OnRefusal, Report, write_counted
from headrace.sinks.influxdb.lines import InfluxWrite, LineShape, as_lines, cannot_hold
from headrace.systems.http.client import HttpClient
from headrace.systems.http.options import HttpOptions, HttpUrl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_LOG = logging.getLogger(__name__)


class InfluxDBSink(HttpOptions, DescribesRewind, AppendsAfterSwitch, ReadsAllRows):
    """Points of an InfluxDB 1.x measurement, in line protocol over HTTP.

    Columns `tag_x` and `label_x` become the tag `x`, `window_timestamp` the time of the point, all others fields.
    Nulls, NaN and infinities are left out; whole numbers are written as integers, texts, dates and other times as
    texts.
    Delivery: idempotent; measurement, tags and time identify a point, so a repeated batch writes the same points. Two
    rows with the same tags and time are one point. That is why a flow without a time column is refused before it
    starts: the server's clock would make new points of repeated rows. Order: none. Scale: one connection per task,
    `batch_size` points per request; every batch is written out at its end, so the flow's `trigger` is the flush
    interval. Points older than the retention policy keeps are dropped by the server and counted as `late` in the metric
    headrace_sink_rows.
    """

    type: Literal["influxdb"] = "influxdb"
    url: HttpUrl = Field(description="Address of the server.", examples=["http://127.0.0.1:8086"])
    database: str = Field(description="Database to write to.", examples=["metrics"], min_length=1)
    measurement: str = Field(description="Measurement of the points.", examples=["bookings"], min_length=1)
    retention_policy: str | None = Field(None, description="Retention policy; the database's default if left out.")
    create: bool = Field(False, description="Make the database when it is missing.")
    time: str = Field("window_timestamp", description="Column with the time of the point.", examples=["window_start"])
    tags: list[str] = Field(
        default=[], description="Further columns that are tags, under their own names.", examples=[["city"]]
    )
    batch_size: int = Field(5000, gt=0, description="Points per request.")
    gzip: bool = Field(True, description="Whether requests are compressed.")
    on_error: OnRefusal = Field("dead_letter", description=ON_ERROR_DESCRIPTION)

    @property
    def guarantee(self) -> Delivery:
        """A repeated point replaces itself."""
        return "idempotent"

    @property
    def target(self) -> str:
        return f"{self.database}/{self.retention_policy or ''}/{self.measurement}"

    @property
    def label(self) -> str:
        return f"influxdb {self.database}.{self.measurement} at {urlsplit(self.url).netloc}"

    def write_path(self) -> str:
        """The path that points are posted to."""
        options = {"db": self.database, "precision": "u"}
        if self.retention_policy is not None:
            options["rp"] = self.retention_policy
        return f"/write?{urlencode(options)}"

    def check(self, context: Context) -> None:
        """The server answers, accepts the login and has the database, which is created if `create` is set."""
        client = self.client(self.label, self.url, context)
        if self.create:
            _query(client, f"CREATE DATABASE {_quoted(self.database)}")
        found = _query(client, f"SHOW RETENTION POLICIES ON {_quoted(self.database)}")
        policies = [row[0] for one in found.get("series", []) for row in one.get("values", [])]
        if self.retention_policy is not None and self.retention_policy not in policies:
            raise ProjectError(
                "sink-missing",
                f"database '{self.database}' has no retention policy '{self.retention_policy}'",
                hint=did_you_mean(self.retention_policy, policies, "retention policies"),
            )

    def check_rows(self, context: Context, columns: Sequence[str], output: str, schema: pa.Schema | None) -> None:
        """The rows have a time, at least one field, and only types that points can hold."""
        require_columns(self.label, "tags", self.tags, columns)
        if self.time not in columns:
            raise ProjectError(
                "influx-needs-time",
                f"sink {self.label} has no time for its points: the flow has no column '{self.time}'",
                hint=f"set `time`; {did_you_mean(self.time, columns, 'columns of the flow')}",
            )
        shape = self._shape(columns)
        if not shape.fields:
            raise ProjectError(
                "influx-needs-field",
                f"sink {self.label} gets tags and a time, and no field",
                hint="select at least one column that is no tag, e.g. a count",
            )
        if schema is not None:
            self._check_types(shape, schema)

    def _check_types(self, shape: LineShape, schema: pa.Schema) -> None:
        for name in (*shape.tags, *shape.fields):
            kind = ddl_type(schema.field(name).type)
            if cannot_hold(kind):
                raise ProjectError(
                    "influx-column-type",
                    f"column '{name}' is {kind}, which a point cannot hold",
                    hint=f"take it apart in SQL, or write it as text: to_json({name})",
                )
        time = schema.field(shape.time).type
        if not (pa.types.is_timestamp(time) or pa.types.is_date(time)):
            raise ProjectError(
                "influx-column-type",
                f"the time of the points, '{shape.time}', is {ddl_type(time)} and no timestamp",
                hint=f"select timestamp_millis({shape.time}) AS {shape.time}, or the like",
            )

    def write_batch(self, rows: DataFrame, batch: Batch) -> None:
        write = InfluxWrite(
            client=self.client(self.label, self.url, batch.context),
            path=self.write_path(),
            batch_size=self.batch_size,
            gzip=self.gzip,
            report=Report.of(batch, self.label, self.on_error),
        )
        counts = write_counted(as_lines(rows, self._shape(rows.columns)), write, batch)
        if counts.get("late"):
            _LOG.warning("%s dropped %s points that are older than its retention", self.label, counts["late"])

    def rewind_effect(self, rewind: Rewind, replace: bool) -> str:
        cannot = "; points written since stay" if replace else ""
        return f"{rewind.read_again}: their points replace those with the same tags and time{cannot}"

    def _shape(self, columns: Sequence[str]) -> LineShape:
        return LineShape.of(list(columns), self.measurement, self.time, self.tags)


def _query(client: HttpClient, text: str) -> dict[str, Any]:
    answer = client.send("POST", f"/query?q={quote(text)}")
    if not answer.ok:
        raise refusal(client.label, answer)
    result: dict[str, Any] = msgspec.json.decode(answer.body)["results"][0]
    if "error" in result:
        raise ProjectError(
            "sink-missing", f"{client.label}: {result['error']}", hint="make the database, or write `create: true`"
        )
    return result


def _quoted(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
