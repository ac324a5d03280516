"""The models of headrace.yaml. They define the YAML keys, the JSON schema and the reference page."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from headrace.core.component import Options
from headrace.core.durations import Duration
from headrace.core.files.object_store import ObjectStore
from headrace.core.format import Format
from headrace.core.kinds import KindOf
from headrace.core.processor import Processor
from headrace.core.sink import Sink
from headrace.core.source import Backfills, Source
from headrace.project.dashboards import DashboardSpec
from headrace.project.ranges import parse_ranges
from headrace.project.schedules import ScheduleSpec
from headrace.project.serving import ServeSpec
from headrace.project.tables import TableSpec

Mode = Literal["batch", "micro_batch", "realtime"]
Output = Literal["append", "update"]
OnError = Literal["dead_letter", "skip", "fail"]
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=60)]


class EventTime(Options):
    """The event-time column, and how late a record may be."""

    column: str = Field(description="The column with the time of the event.", examples=["event_timestamp"])
    unit: Literal["s", "ms", "us", "ns"] = Field("ms", description="The unit of a number in that column, since 1970.")
    alias: str = Field(
        "rowtime",
        description="Another name of that column in SQL, as in Dagger; ignored if a column has that name.",
    )
    watermark: Duration = Field(
        timedelta(seconds=10), description="How long to wait for late records before a window is closed."
    )
    late: Literal["keep", "drop"] = Field(
        "keep",
        description="What to do with rows that are too late for their window: keep them as late rows in the state "
        "folder, or let Spark drop and count them.",
    )
    max_future: Duration | None = Field(
        timedelta(hours=1),
        description="How far the time of a record may be ahead of its batch; null: no limit. One record of next "
        "year would close all windows up to then.",
    )
    on_future: Literal["dead_letter", "clamp"] = Field(
        "dead_letter",
        description="What to do with a record further ahead: keep it as a dead letter, or set its time to that of "
        "its batch.",
    )
    idle: Duration | None = Field(
        None,
        description="After this time without records, a stream that is caught up no longer holds back windows over "
        "several streams: its watermark advances to this much before now. Default: wait forever.",
    )

    @field_validator("watermark")
    @classmethod
    def _at_least_a_millisecond(cls, value: timedelta) -> timedelta:
        # with a delay of 0 Spark drops records with the same time as the newest one
        if value < timedelta(milliseconds=1):
            raise ValueError("must be at least 1ms")
        return value

    @model_validator(mode="after")
    def _idle_after_the_watermark(self) -> EventTime:
        if self.idle is not None and self.idle < self.watermark:
            raise ValueError("'idle' must be at least 'watermark': records within that delay would be late")
        return self


class BackfillSpec(Options):
    """History that a flow reads before the stream itself: Parquet files or a lake table with the stream's columns.

    At a flow's first start the files are listed once and read in the order of event time, part by part; then the flow
    reads Kafka. Nothing is lost or repeated at the seam. Without `until` the rows have the columns `_topic`,
    `_partition` and `_offset` that they had in Kafka, and Kafka is read after the highest offset of each partition.
    With `until`, event times decide: older rows come from the history alone, all others from Kafka alone.
    """

    files: str | list[str] | None = Field(
        None,
        description="Parquet files, folders or globs, relative to the project. Folders named dt=2026-01-31 and hr=07 "
        "are columns of their rows. Maps may be maps or lists of structs of `key` and `value`.",
        examples=["history/orders", ["history/2025", "history/2026"]],
    )
    lake: str | None = Field(
        None,
        description="Instead of `files`: folder or URI of a Delta table; its rows at the first start are read.",
        examples=["lake/orders"],
    )
    dates: str | None = Field(
        None,
        description="Only folders of these days or hours: `start,end;start,end`, both ends included, in UTC.",
        examples=["2026-01-01,2026-01-31;2026-03-01T06,2026-03-01T18"],
    )
    until: datetime | None = Field(
        None,
        description="The event time at which the history ends and Kafka begins; no zone means UTC.",
        examples=["2026-02-01T00:00:00Z"],
    )
    margin: Duration = Field(
        timedelta(hours=1),
        description="With `until`: how much earlier than its event time a record may have been written to Kafka. "
        "Kafka is read from this much before `until`.",
    )

    @field_validator("until")
    @classmethod
    def _zoned(cls, until: datetime | None) -> datetime | None:
        return until.replace(tzinfo=UTC) if until is not None and until.tzinfo is None else until

    @field_validator("dates")
    @classmethod
    def _ranges(cls, dates: str | None) -> str | None:
        if dates is not None:
            parse_ranges(dates)
        return dates

    @model_validator(mode="after")
    def _one_place(self) -> BackfillSpec:
        if (self.files is None) == (self.lake is None):
            raise ValueError("needs exactly one of 'files' and 'lake'")
        if self.dates is not None and self.files is None:
            raise ValueError("'dates' selects folders of 'files'")
        return self

    @property
    def label(self) -> str:
        place = f"lake {self.lake}" if self.lake else f"files {', '.join(self.paths)}"
        return place + (f" of {self.dates}" if self.dates else "")

    @property
    def paths(self) -> list[str]:
        return [self.files] if isinstance(self.files, str) else list(self.files or [])

    @property
    def seam(self) -> str:
        """Where the history ends and Kafka begins, as text."""
        return f"event time {self.until.isoformat()}" if self.until else "the highest offset of each partition"

    @property
    def reads(self) -> str:
        """Identifies the history: a flow that started with one cannot resume with another."""
        return f"{self.label} up to {self.seam}"


class StreamSpec(Options):
    """Unbounded, append-only records with a schema and an event time."""

    description: str = Field("", description="A description, shown in plans.")
    source: Annotated[Source, KindOf("sources")] = Field(description="Where the records come from.")
    format: Annotated[Format, KindOf("formats")] | None = Field(
        None, description="The format of a record. Not needed if the source has columns."
    )
    event_time: EventTime | None = Field(
        None, description="The event-time column, or a mapping with its unit and watermark."
    )
    on_error: OnError = Field(
        "dead_letter",
        description="What to do with a record that cannot be decoded: keep it as a dead letter, skip it (counted) or "
        "fail the flow.",
    )
    backfill: BackfillSpec | None = Field(
        None, description="History in files or a lake table that flows read before Kafka."
    )

    @field_validator("event_time", mode="before")
    @classmethod
    def _column_alone(cls, value: Any) -> Any:
        return {"column": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _backfill_is_possible(self) -> StreamSpec:
        if self.backfill is None:
            return self
        if not isinstance(self.source, Backfills):
            kind = self.source.kind()
            raise ValueError(
                f"'backfill' needs a source that can wait and resume at an offset, such as kafka, not {kind}"
            )
        obstacle = self.source.backfill_obstacle()
        if obstacle is not None:
            raise ValueError(f"'backfill' {obstacle}")
        if self.backfill.until is not None and self.event_time is None:
            raise ValueError("'backfill' with 'until' needs an 'event_time'")
        return self


class FlowSpec(Options):
    """One dataflow: streams or other flows, through SQL, into sinks. One flow is one Spark query and one checkpoint."""

    description: str = Field("", description="A description, shown in plans.")
    before: dict[Name, list[Annotated[Processor, KindOf("processors")]]] = Field(
        default={},
        description="Steps between an input and the SQL, by the name of the stream or flow, in order.",
        examples=[{"bookings": [{"type": "constant", "values": {"country": "ID"}}]}],
    )
    sql: str | None = Field(None, description="The query, in Spark SQL. Streams and flows are its tables.")
    sql_file: str | None = Field(None, description="A file with the query, instead of `sql`.", examples=["sql/a.sql"])
    dialect: Literal["spark", "dagger"] = Field(
        "spark",
        description="Which meaning applies where Spark and Dagger (Flink SQL) differ: arrays from 0 or 1, division of "
        "integers to a fraction or an integer, backslashes in strings, SPLIT. Syntax of Dagger only, such as TUMBLE "
        "and rowtime, works with both.",
    )
    after: list[Annotated[Processor, KindOf("processors")]] = Field(
        default=[],
        description="Steps between the SQL and the sinks, in order. Each sees the columns of those before it.",
    )
    sinks: list[Annotated[Sink, KindOf("sinks")]] = Field(
        default=[], description="The sinks of the rows. A flow without sinks can only be read by other flows."
    )
    mode: Mode = Field("micro_batch", description="batch: run once. micro_batch: default. realtime: milliseconds.")
    over: Literal["new", "all"] = Field(
        "new",
        description="Of mode batch. new: each run reads the records since the last. all: a report; each run reads the "
        "current rows of lake tables and tables, and replaces the result of the last run.",
    )
    schedule: ScheduleSpec | None = Field(
        None,
        description="Of mode batch: when it runs, as a cron expression, optionally with a time zone. Missed runs are "
        "made up for by one run. `headrace run FLOW` runs it at once, `--until-caught-up` alone does not.",
        examples=["30 0 * * *", {"cron": "30 0 * * *", "zone": "Asia/Kolkata"}],
    )
    key: str | list[str] = Field(
        default=[],
        description="Of a view or a report: the column(s) of its result that identify a row. Default for a view: "
        "derived from the keys of the tables and the SQL.",
        examples=["region", ["region", "day"]],
    )
    output: Output = Field(
        "append", description="append: only final rows. update: a row of an aggregate each time it changes."
    )
    trigger: Duration | None = Field(None, description="Time between micro-batches; default from `defaults`.")
    max_records: int | None = Field(None, gt=0, description="At most this many records per micro-batch and stream.")
    partitions: int | None = Field(
        None, gt=0, description="Partitions of the state and of shuffles, fixed at the first start of a flow."
    )
    event_time: EventTime | None = Field(
        None, description="The event-time column of the result, for flows that read this one through its lake table."
    )
    spark: dict[str, str] = Field(default={}, description="Spark SQL settings for this flow alone.")
    required: bool = Field(
        True, description="Whether the engine is not ready while this flow is starting, degraded or failed."
    )

    @field_validator("event_time", mode="before")
    @classmethod
    def _column_alone(cls, value: Any) -> Any:
        return {"column": value} if isinstance(value, str) else value

    @field_validator("schedule", mode="before")
    @classmethod
    def _cron_alone(cls, value: Any) -> Any:
        return {"cron": value} if isinstance(value, str) else value

    @field_validator("spark", mode="before")
    @classmethod
    def _settings(cls, value: Any) -> Any:
        return settings_as_text(value)

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key,) if isinstance(self.key, str) else tuple(self.key)

    @model_validator(mode="after")
    def _one_query(self) -> FlowSpec:
        if (self.sql is None) == (self.sql_file is None):
            raise ValueError("needs exactly one of 'sql' and 'sql_file'")
        for name, is_set in (("schedule", self.schedule is not None), ("over: all", self.over == "all")):
            if is_set and self.mode != "batch":
                raise ValueError(f"'{name}' needs 'mode: batch': a flow of mode {self.mode} runs continuously")
        return self


class Defaults(Options):
    """Values for every flow that does not set its own."""

    trigger: Duration = Field(timedelta(seconds=1), description="Time between micro-batches.")
    max_records: int = Field(2_000_000, gt=0, description="At most this many records per micro-batch and stream.")
    partitions: int = Field(2, gt=0, description="Partitions of state and shuffles.")


class RestartSpec(Options):
    """How a failed flow is restarted. External failures (an unavailable broker, a full disk) are retried without limit;
    the budget is for unexplained failures."""

    budget: int = Field(5, ge=0, description="How many unexplained failures of one flow are retried; 0: none.")
    within: Duration = Field(timedelta(minutes=10), description="The period for which the budget applies.")
    backoff: Duration = Field(
        timedelta(seconds=1), description="The wait before the first restart; it doubles each time."
    )
    max_backoff: Duration = Field(timedelta(minutes=1), description="The longest wait before a restart.")


class HttpSpec(Options):
    """The HTTP interface of a running engine: `/metrics`, `/health/…`, `/api/v1/status`."""

    host: str = Field("127.0.0.1", description="The address to listen on; loopback only.")
    port: int = Field(9470, ge=0, le=65535, description="The port; 0: any free port, which is printed.")

    @field_validator("host")
    @classmethod
    def _only_here(cls, host: str) -> str:
        # there is no authentication
        if not is_loopback(host):
            raise PydanticCustomError("not-loopback", "must be a loopback address, such as 127.0.0.1")
        return host


# local-cluster is for tests of Spark; a port may be missing, and there may be several masters
_MASTER = re.compile(r"local(\[[^\]]+\])?|local-cluster\[.+\]|spark://\S+|k8s://\S+|yarn")


class SparkSpec(Options):
    """Where and how Spark runs."""

    master: str = Field(
        "local[*]",
        description="local[N], spark://host:port, k8s://… or yarn. The package, jars and project files are shipped.",
        examples=["local[*]", "spark://127.0.0.1:7077"],
    )
    memory: str = Field(
        "1g", pattern=r"^\d+[mg]$", description="Heap of the driver; locally that is the whole engine.", examples=["2g"]
    )
    accelerate: bool = Field(
        True,
        description=(
            "Whether Headrace speeds Spark up: Python processes are forked from one with loaded libraries, Java maps "
            "Spark's classes from an archive, and Java helpers cache missing classes, read JSON fields and write local "
            "files. With false Headrace runs on plain Spark and Hadoop: the same results, more slowly."
        ),
    )
    conf: dict[str, str] = Field(default={}, description="Further Spark settings.")

    @field_validator("master")
    @classmethod
    def _known_to_spark(cls, master: str) -> str:
        if not _MASTER.fullmatch(master):
            raise ValueError(f"'{master}' is not a Spark master; write e.g. local[*], spark://host:7077, yarn")
        return master

    @field_validator("conf", mode="before")
    @classmethod
    def _settings(cls, value: Any) -> Any:
        return settings_as_text(value)


class LookupsSpec(Options):
    """The files of DartGet and DartContains."""

    path: str = Field(
        description="A folder, or the URI of one in an object store, with `dart-get/` and `dart-contains/` in it.",
        examples=["lookups", "s3://bucket/lookups"],
    )
    refresh: Duration = Field(
        timedelta(hours=1), description="How old a file may be before it is read again, unless a call sets its own age."
    )


class FunctionsSpec(Options):
    """Settings of SQL functions."""

    lookups: LookupsSpec | None = Field(None, description="Lists and maps in JSON files, for DartGet and DartContains.")


class ProjectSpec(Options):
    """One project: streams, tables, flows and where they run."""

    project: Name = Field(description="The project's name.")
    include: list[str] = Field(default=[], description="Further files to merge into this one; globs are allowed.")
    variables: dict[str, Any] = Field(
        default={}, description="Values for ${NAME} anywhere in the file; the environment is next."
    )
    choices: dict[str, list[str | int | float | bool]] = Field(
        default={},
        description="The allowed values of a variable. Any other value is an error.",
        examples=[{"mode": ["strict", "lenient"]}],
    )
    secrets: dict[str, str] = Field(
        default={}, description="Files with the values of ${secret:NAME}; without a file the environment is used."
    )
    sinks: dict[Name, Annotated[Sink, KindOf("sinks")]] = Field(
        default={}, description="Sinks that flows may refer to by name."
    )
    profiles: dict[Name, dict[str, Any]] = Field(
        default={}, description="Values that override the rest of the file with `--profile NAME`."
    )
    streams: dict[Name, StreamSpec] = Field(default={}, description="Streams by name.")
    tables: dict[Name, TableSpec] = Field(default={}, description="Tables by name.")
    flows: dict[Name, FlowSpec] = Field(default={}, description="Flows by name.")
    dashboards: dict[Name, DashboardSpec] = Field(default={}, description="Pages of charts over endpoints, by name.")
    functions: FunctionsSpec = Field(FunctionsSpec(), description="Settings of SQL functions.")
    defaults: Defaults = Field(Defaults(), description="Values for every flow.")
    spark: SparkSpec = Field(SparkSpec(), description="Where and how Spark runs.")
    restart: RestartSpec = Field(RestartSpec(), description="How a failed flow is restarted.")
    http: HttpSpec = Field(HttpSpec(), description="The HTTP interface of a running engine.")
    serve: ServeSpec = Field(ServeSpec(), description="How endpoints are stored, served and protected.")
    state: str = Field(
        ".headrace",
        min_length=1,
        description="The folder for checkpoints and dead letters; on a cluster, one that all nodes have mounted, or "
        "`s3://BUCKET/PATH` on an S3-compatible object store. Logs stay on the machine then, in `.headrace`.",
        examples=[".headrace", "s3://flows/shop"],
    )
    object_store: ObjectStore = Field(
        ObjectStore(),
        description="The connection to the object store of `state`; default: the usual `AWS_…` variables.",
    )

    @field_validator("serve")
    @classmethod
    def _open_only_here(cls, serve: ServeSpec) -> ServeSpec:
        if not serve.auth.wanted and not is_loopback(serve.host):
            raise PydanticCustomError(
                "serve-unguarded",
                "'host' is not a loopback address, so anyone could read all endpoints: set 'auth', or remove 'host'",
            )
        return serve


def settings_as_text(value: Any) -> Any:
    """Spark settings as strings; YAML parses some as numbers and booleans."""
    if not isinstance(value, dict):
        return value
    return {str(k): str(v).lower() if isinstance(v, bool) else str(v) for k, v in value.items()}


def is_loopback(host: str) -> bool:
    """Whether a host name or address is a loopback address."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
