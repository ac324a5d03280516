"""What may stand in headrace.yaml. These models are the YAML keys, the JSON schema and the reference page at once."""

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
    """Which column says when something happened, and how late a record may be."""

    column: str = Field(description="The column with the time of the event.", examples=["event_timestamp"])
    unit: Literal["s", "ms", "us", "ns"] = Field("ms", description="What a number in that column counts since 1970.")
    alias: str = Field(
        "rowtime",
        description="Another name of that column in SQL, unless there is a column of that name, as in Dagger.",
    )
    watermark: Duration = Field(
        timedelta(seconds=10), description="How long to wait for late records before a window is closed."
    )
    late: Literal["keep", "drop"] = Field(
        "keep",
        description="What to do with rows that come too late for their window: keep them as late rows in the state "
        "folder, or let Spark drop them, which only counts them.",
    )
    max_future: Duration | None = Field(
        timedelta(hours=1),
        description="How far ahead of its batch the time of a record may be; null for any time. One record of next "
        "year would close all windows up to then.",
    )
    on_future: Literal["dead_letter", "clamp"] = Field(
        "dead_letter",
        description="What to do with a record from further ahead: keep it as a dead letter, or take the time of its "
        "batch for its own.",
    )
    idle: Duration | None = Field(
        None,
        description="When this stream is caught up and had no record for that long, it no longer holds back windows "
        "over several streams: its watermark goes on to that much before now. Default: wait for ever.",
    )

    @field_validator("watermark")
    @classmethod
    def _at_least_a_millisecond(cls, value: timedelta) -> timedelta:
        # with a delay of 0 Spark drops records that are as late as the newest one
        if value < timedelta(milliseconds=1):
            raise ValueError("must be at least 1ms")
        return value

    @model_validator(mode="after")
    def _idle_after_the_watermark(self) -> EventTime:
        if self.idle is not None and self.idle < self.watermark:
            raise ValueError("'idle' must be at least 'watermark': records within that delay would come too late")
        return self


class BackfillSpec(Options):
    """History that a flow reads before the stream itself: Parquet files or a lake table with the stream's columns.

    At a flow's first start the files are listed, once and for all, and read in the order of event time, part by part;
    then Kafka goes on. Nothing is lost or repeated at the seam. Without `until` the rows have the columns `_topic`,
    `_partition` and `_offset` that they had in Kafka, and it goes on after the highest offset of each partition. With
    `until`, event times decide: what is older comes from the history alone, all else from Kafka alone.
    """

    files: str | list[str] | None = Field(
        None,
        description="Parquet files, folders or globs, relative to the project. Folders named dt=2026-01-31 and hr=07 "
        "are columns of their rows. Maps may be maps or lists of structs of `key` and `value`.",
        examples=["history/orders", ["history/2025", "history/2026"]],
    )
    lake: str | None = Field(
        None,
        description="Instead of `files`: folder or URI of a Delta table, as it stands at the first start.",
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
        "Records are read from that much before `until` on.",
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
            raise ValueError("'dates' chooses among folders of 'files'")
        return self

    @property
    def label(self) -> str:
        """Where the history is."""
        place = f"lake {self.lake}" if self.lake else f"files {', '.join(self.paths)}"
        return place + (f" of {self.dates}" if self.dates else "")

    @property
    def paths(self) -> list[str]:
        """The files, folders and globs."""
        return [self.files] if isinstance(self.files, str) else list(self.files or [])

    @property
    def seam(self) -> str:
        """Where Kafka goes on, in words."""
        return f"event time {self.until.isoformat()}" if self.until else "the highest offset of each partition"

    @property
    def reads(self) -> str:
        """What tells one history from another: a flow that has begun with one cannot go on with another."""
        return f"{self.label} up to {self.seam}"


class StreamSpec(Options):
    """Unbounded, append-only records with a schema and an event time."""

    description: str = Field("", description="What the stream holds; shown in plans.")
    source: Annotated[Source, KindOf("sources")] = Field(description="Where the records come from.")
    format: Annotated[Format, KindOf("formats")] | None = Field(
        None, description="How a record is laid out. Not needed when the source has columns of its own."
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
        None, description="History in files or a lake table, which flows read before they go on with Kafka."
    )

    @field_validator("event_time", mode="before")
    @classmethod
    def _column_alone(cls, value: Any) -> Any:
        return {"column": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _history_goes_on(self) -> StreamSpec:
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

    description: str = Field("", description="What the flow is for; shown in plans.")
    before: dict[Name, list[Annotated[Processor, KindOf("processors")]]] = Field(
        default={},
        description="Steps between an input and the SQL, by the name of the stream or flow, in the order written.",
        examples=[{"bookings": [{"type": "constant", "values": {"country": "ID"}}]}],
    )
    sql: str | None = Field(None, description="The query, in Spark SQL. Streams and flows are its tables.")
    sql_file: str | None = Field(None, description="A file with the query, instead of `sql`.", examples=["sql/a.sql"])
    dialect: Literal["spark", "dagger"] = Field(
        "spark",
        description="Whose meaning counts where Spark and Dagger (Flink SQL) read the same text differently: arrays "
        "from 0 or from 1, whole numbers that divide to a fraction or a whole number, backslashes in texts, SPLIT. "
        "What only Dagger has, such as TUMBLE and rowtime, works with both.",
    )
    after: list[Annotated[Processor, KindOf("processors")]] = Field(
        default=[],
        description="Steps between the SQL and the sinks, in the order written. Each sees the columns of all before.",
    )
    sinks: list[Annotated[Sink, KindOf("sinks")]] = Field(
        default=[], description="Where the rows go. A flow without sinks can only be read by other flows."
    )
    mode: Mode = Field("micro_batch", description="batch: run once. micro_batch: default. realtime: milliseconds.")
    over: Literal["new", "all"] = Field(
        "new",
        description="Of mode batch. new: each run takes what came since the last. all: a report; each run reads lake "
        "tables and tables as they stand, and its result replaces that of the last run.",
    )
    schedule: ScheduleSpec | None = Field(
        None,
        description="Of mode batch: when it runs by itself, as a text for cron or with a time zone. A run that was "
        "missed is made up for, once. `headrace run FLOW` runs it at once, `--until-caught-up` alone does not.",
        examples=["30 0 * * *", {"cron": "30 0 * * *", "zone": "Asia/Kolkata"}],
    )
    key: str | list[str] = Field(
        default=[],
        description="Of a flow over tables, or a report: the column(s) of its result that identify a row. Default: of "
        "a flow over tables, found from the keys of the tables and the SQL.",
        examples=["region", ["region", "day"]],
    )
    output: Output = Field(
        "append", description="append: only final rows. update: every changed row of an aggregate, again and again."
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
        True, description="Whether the engine counts as not ready while this flow is starting, degraded or failed."
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
        """The columns of the declared key."""
        return (self.key,) if isinstance(self.key, str) else tuple(self.key)

    @model_validator(mode="after")
    def _one_query(self) -> FlowSpec:
        if (self.sql is None) == (self.sql_file is None):
            raise ValueError("needs exactly one of 'sql' and 'sql_file'")
        for name, given in (("schedule", self.schedule is not None), ("over: all", self.over == "all")):
            if given and self.mode != "batch":
                raise ValueError(f"'{name}' needs 'mode: batch': a flow of mode {self.mode} always runs")
        return self


class Defaults(Options):
    """Values for every flow that does not set its own."""

    trigger: Duration = Field(timedelta(seconds=1), description="Time between micro-batches.")
    max_records: int = Field(2_000_000, gt=0, description="At most this many records per micro-batch and stream.")
    partitions: int = Field(2, gt=0, description="Partitions of state and shuffles.")


class RestartSpec(Options):
    """How a flow that failed is started again. What comes from outside (a broker that is away, a full disk) is waited
    for as long as it lasts; the budget is for failures nobody can explain."""

    budget: int = Field(5, ge=0, description="Unexplained failures of one flow that are forgiven; 0: none.")
    within: Duration = Field(timedelta(minutes=10), description="The time in which so many are forgiven.")
    backoff: Duration = Field(timedelta(seconds=1), description="The wait before the first restart; then it doubles.")
    max_backoff: Duration = Field(timedelta(minutes=1), description="The longest wait before a restart.")


class HttpSpec(Options):
    """Where a running engine answers questions about itself: `/metrics`, `/health/…`, `/api/v1/status`."""

    host: str = Field("127.0.0.1", description="The address to listen on; only those of this machine itself.")
    port: int = Field(9470, ge=0, le=65535, description="The port; 0 is any free one, which is printed.")

    @field_validator("host")
    @classmethod
    def _only_here(cls, host: str) -> str:
        # the answers are for anyone who asks: there are no users and no passwords yet
        if not is_loopback(host):
            raise PydanticCustomError("not-loopback", "must be an address of this machine itself, such as 127.0.0.1")
        return host


# local-cluster is Spark's own for tests; a port may be missing, and there may be several masters
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
            raise ValueError(f"'{master}' is nothing Spark runs on; write e.g. local[*], spark://host:7077, yarn")
        return master

    @field_validator("conf", mode="before")
    @classmethod
    def _settings(cls, value: Any) -> Any:
        return settings_as_text(value)


class LookupsSpec(Options):
    """Where DartGet and DartContains find their files."""

    path: str = Field(
        description="A folder, or the URI of one in an object store, with `dart-get/` and `dart-contains/` in it.",
        examples=["lookups", "s3://bucket/lookups"],
    )
    refresh: Duration = Field(
        timedelta(hours=1), description="How old a file may be before it is read again, unless a call says otherwise."
    )


class FunctionsSpec(Options):
    """What functions of SQL need to know of the project."""

    lookups: LookupsSpec | None = Field(None, description="Lists and maps in JSON files, for DartGet and DartContains.")


class ProjectSpec(Options):
    """One project: streams, tables, flows and where they run."""

    project: Name = Field(description="The project's name.")
    include: list[str] = Field(default=[], description="Further files to merge into this one; globs are allowed.")
    variables: dict[str, Any] = Field(
        default={}, description="Values for ${NAME} anywhere in the file; the environment is asked next."
    )
    choices: dict[str, list[str | int | float | bool]] = Field(
        default={},
        description="What a variable may be, where not every value means something. Another one is an error.",
        examples=[{"mode": ["strict", "lenient"]}],
    )
    secrets: dict[str, str] = Field(
        default={}, description="Files that hold the values of ${secret:NAME}; without one the environment is asked."
    )
    sinks: dict[Name, Annotated[Sink, KindOf("sinks")]] = Field(
        default={}, description="Sinks that flows may name instead of writing them out."
    )
    profiles: dict[Name, dict[str, Any]] = Field(
        default={}, description="Values laid over the rest of the file by `--profile NAME`."
    )
    streams: dict[Name, StreamSpec] = Field(default={}, description="Streams by name.")
    tables: dict[Name, TableSpec] = Field(default={}, description="Tables by name.")
    flows: dict[Name, FlowSpec] = Field(default={}, description="Flows by name.")
    dashboards: dict[Name, DashboardSpec] = Field(default={}, description="Pages of charts over endpoints, by name.")
    functions: FunctionsSpec = Field(FunctionsSpec(), description="What functions of SQL need to know of the project.")
    defaults: Defaults = Field(Defaults(), description="Values for every flow.")
    spark: SparkSpec = Field(SparkSpec(), description="Where and how Spark runs.")
    restart: RestartSpec = Field(RestartSpec(), description="How a flow that failed is started again.")
    http: HttpSpec = Field(HttpSpec(), description="Where a running engine answers questions about itself.")
    serve: ServeSpec = Field(ServeSpec(), description="How endpoints are kept, served and guarded.")
    state: str = Field(
        ".headrace",
        min_length=1,
        description="The folder for checkpoints and dead letters; on a cluster, one that all nodes have mounted, or "
        "`s3://BUCKET/PATH` on an S3-compatible object store. Logs stay on the machine then, in `.headrace`.",
        examples=[".headrace", "s3://flows/shop"],
    )
    object_store: ObjectStore = Field(
        ObjectStore(), description="How the object store of `state` is reached; the usual `AWS_…` variables will do."
    )

    @field_validator("serve")
    @classmethod
    def _open_only_here(cls, serve: ServeSpec) -> ServeSpec:
        if not serve.auth.wanted and not is_loopback(serve.host):
            raise PydanticCustomError(
                "serve-unguarded",
                "'host' is not an address of this machine itself, so everybody could read all endpoints: set 'auth', "
                "or leave out 'host'",
            )
        return serve


def settings_as_text(value: Any) -> Any:
    """Spark settings are text; YAML makes numbers and booleans of some of them."""
    if not isinstance(value, dict):
        return value
    return {str(k): str(v).lower() if isinstance(v, bool) else str(v) for k, v in value.items()}


def is_loopback(host: str) -> bool:
    """Whether a name or address means this machine itself."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
