"""What may stand in headrace.yaml. These models are the YAML keys, the JSON schema and the reference page at once."""

from __future__ import annotations

from datetime import timedelta
from ipaddress import ip_address
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from headrace.core.component import Options
from headrace.core.durations import Duration
from headrace.core.format import Format
from headrace.core.kinds import KindOf
from headrace.core.sink import Sink
from headrace.core.source import Source

Mode = Literal["batch", "micro_batch", "realtime"]
Output = Literal["append", "update"]
OnError = Literal["dead_letter", "skip", "fail"]
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=60)]


class EventTime(Options):
    """Which column says when something happened, and how late a record may be."""

    column: str = Field(description="The column with the time of the event.", examples=["event_timestamp"])
    unit: Literal["s", "ms", "us", "ns"] = Field("ms", description="What a number in that column counts since 1970.")
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

    @field_validator("event_time", mode="before")
    @classmethod
    def _column_alone(cls, value: Any) -> Any:
        return {"column": value} if isinstance(value, str) else value


class FlowSpec(Options):
    """One dataflow: streams or other flows, through SQL, into sinks. One flow is one Spark query and one checkpoint."""

    description: str = Field("", description="What the flow is for; shown in plans.")
    sql: str | None = Field(None, description="The query, in Spark SQL. Streams and flows are its tables.")
    sql_file: str | None = Field(None, description="A file with the query, instead of `sql`.", examples=["sql/a.sql"])
    sinks: list[Annotated[Sink, KindOf("sinks")]] = Field(
        default=[], description="Where the rows go. A flow without sinks can only be read by other flows."
    )
    mode: Mode = Field("micro_batch", description="batch: run once. micro_batch: default. realtime: milliseconds.")
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

    @field_validator("spark", mode="before")
    @classmethod
    def _settings(cls, value: Any) -> Any:
        return settings_as_text(value)

    @model_validator(mode="after")
    def _one_query(self) -> FlowSpec:
        if (self.sql is None) == (self.sql_file is None):
            raise ValueError("needs exactly one of 'sql' and 'sql_file'")
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
    conf: dict[str, str] = Field(default={}, description="Further Spark settings.")

    @field_validator("conf", mode="before")
    @classmethod
    def _settings(cls, value: Any) -> Any:
        return settings_as_text(value)


class ProjectSpec(Options):
    """One project: streams, flows and where they run."""

    project: Name = Field(description="The project's name.")
    include: list[str] = Field(default=[], description="Further files to merge into this one; globs are allowed.")
    variables: dict[str, Any] = Field(
        default={}, description="Values for ${NAME} anywhere in the file; the environment is asked next."
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
    flows: dict[Name, FlowSpec] = Field(default={}, description="Flows by name.")
    defaults: Defaults = Field(Defaults(), description="Values for every flow.")
    spark: SparkSpec = Field(SparkSpec(), description="Where and how Spark runs.")
    restart: RestartSpec = Field(RestartSpec(), description="How a flow that failed is started again.")
    http: HttpSpec = Field(HttpSpec(), description="Where a running engine answers questions about itself.")
    state: str = Field(
        ".headrace",
        description="The folder for checkpoints, dead letters and logs; on a cluster, one that all nodes have mounted.",
    )


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
