"""`type: endpoint`: rows that are served over REST, gRPC and live events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pydantic import Field, PrivateAttr, field_validator, model_validator

from headrace.core.capabilities import (
    BuildsCandidate,
    Candidate,
    HoldsView,
    PublishesWhenCaughtUp,
    ReadsAllRows,
    Rewind,
    Rewindable,
    ServesEndpoint,
)
from headrace.core.context import Batch, Context
from headrace.core.endpoints import OLD, OP, RESERVED, Conflicts, Endpoint
from headrace.core.errors import ProjectError
from headrace.core.records import spark_schema
from headrace.core.rows import drain, structured
from headrace.core.runtime.lazy import lazy_modules
from headrace.core.sink import Delivery, Sink
from headrace.log.folder import LogFolder, Version
from headrace.log.log import Log, Mark, SegmentPart
from headrace.sinks._documents import require_columns
from headrace.sinks._refused import ON_ERROR_DESCRIPTION, OnRefusal, Report
from headrace.sinks._views import refuse_options, view_key
from headrace.sinks.endpoint.views import view_builder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.sinks.endpoint import rewind as endpoint_rewind
    from headrace.sinks.endpoint import rows as endpoint_rows
    from headrace.sinks.endpoint import stage as endpoint_stage
else:
    endpoint_rewind, endpoint_rows, endpoint_stage = lazy_modules(
        "headrace.sinks.endpoint.rewind", "headrace.sinks.endpoint.rows", "headrace.sinks.endpoint.stage"
    )

_TAKEN = sorted(RESERVED)
# a new generation of a view inserts rows that are there, and may delete or update those of another one
_UPSERTS = Conflicts(on_insert="update", on_update="upsert", on_delete="nothing")


@dataclass
class _KnownVersion:
    """What a sink learned while it wrote. Sinks are equal with and without it."""

    endpoint: Endpoint
    generation: str
    version: Version
    log: Log

    def fits(self, endpoint: Endpoint, generation: str) -> bool:
        return (self.endpoint, self.generation) == (endpoint, generation)


@dataclass(eq=False)
class _TargetVersion:
    """The version that the current generation writes to, once it is known."""

    found: _KnownVersion | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _TargetVersion)

    __hash__ = None  # type: ignore[assignment]


class EndpointSink(ServesEndpoint, HoldsView, Rewindable, BuildsCandidate, PublishesWhenCaughtUp, ReadsAllRows):
    """Rows that a serve node answers requests from: with `key` one row per key, replaced by the newest; without, all.

    Delivery: exactly once per generation of the flow; one small file commits a batch to the endpoint's log, and a serve
    node stores its position in the log together with the rows. Tasks write their changes next to the log; the file
    makes them a segment of it, and serve nodes apply whole segments.
    Order: changes of one key apply in the order of `sequence`, else of the rows; those of one batch are put together
    first, so that readers see one change per key and batch. A row that comes in a later batch replaces an earlier one
    whatever its `sequence` says. Scale: batches of some million rows; a commit takes some milliseconds on a disk and
    some tenths of a second on an object store, so a trigger of 100 ms can be kept up.
    Another key, other columns or indexes are a new version of the endpoint, filled by a new generation of the flow and
    served once that has caught up. A null in a key, or an operation that is none, is refused.
    A view is held by its key: its changes are changes of the endpoint, without a shuffle. A new generation of it fills
    a new version.
    """

    type: Literal["endpoint"] = "endpoint"
    name: str | None = Field(
        None,
        description="What it is called in addresses, e.g. `GET /orders`. Default: the name of the flow. One endpoint "
        "is written by one flow.",
        examples=["orders"],
        pattern=r"^[A-Za-z][A-Za-z0-9_-]*$",
        max_length=60,
    )
    description: str = Field("", description="What its rows are, for the people who use it.")
    key: str | list[str] = Field(
        default=[],
        description="Column(s) that identify a row. Without any, rows are only added, and none can be requested by "
        "key. Left out, that of a view is the view's own.",
        examples=["id", ["region", "id"]],
    )
    indexes: list[str | list[str]] = Field(
        default=[],
        description="Columns, or lists of columns, to find and sort rows by. Each costs room and time on every change.",
        examples=[["status", ["region", "amount"]]],
    )
    text: list[str] = Field(
        default=[], description="Columns of text whose words can be searched for.", examples=[["title"]]
    )
    sequence: str | None = Field(
        None,
        description="Column that decides which of two rows of a batch with one key is newer.",
        examples=["updated_at"],
    )
    delete: str | None = Field(
        None,
        description="Boolean column: true deletes the row with this key. It is not part of the endpoint.",
        examples=["is_deleted"],
    )
    operation: str | None = Field(
        None,
        description="Column with the operation of the row: insert, update, upsert or delete. It is not part of "
        "the endpoint.",
        examples=["op"],
    )
    on_insert: Literal["nothing", "update", "error"] = Field(
        "nothing", description="What an insert does when the row is there: nothing, update it, or be refused."
    )
    on_update: Literal["nothing", "upsert", "error"] = Field(
        "nothing", description="What an update of a missing row does: nothing, insert it, or fail as refused."
    )
    on_delete: Literal["nothing", "error"] = Field(
        "nothing", description="What a delete of a missing row does: nothing, or fail as refused."
    )
    on_error: OnRefusal = Field("dead_letter", description=ON_ERROR_DESCRIPTION)
    _builder: str | None = PrivateAttr(None)
    """The candidate generation that fills a separate version with this sink."""
    _place: _TargetVersion = PrivateAttr(default_factory=_TargetVersion)
    _of_view: bool = PrivateAttr(False)

    @field_validator("name")
    @classmethod
    def _is_free(cls, name: str | None) -> str | None:
        if name in _TAKEN:
            raise ValueError(f"'{name}' is an address of the server itself")
        return name

    @model_validator(mode="after")
    def _fits_together(self) -> EndpointSink:
        for option in ("sequence", "delete", "operation"):
            if getattr(self, option) is not None and not self.keys:
                raise ValueError(f"`{option}` is about rows that are there already, so it needs `key`")
        if self.delete is not None and self.operation is not None:
            raise ValueError("`operation` states what is deleted, so `delete` is superfluous")
        for option, needed in (("on_insert", self.operation), ("on_update", self.operation)):
            if getattr(self, option) != "nothing" and needed is None:
                raise ValueError(f"`{option}` is about rows that say what is done with them, so it needs `operation`")
        if self.on_delete != "nothing" and self.operation is None and self.delete is None:
            raise ValueError("`on_delete` needs `delete` or `operation`")
        for option, names in self._named():
            if self.delete in names or self.operation in names:
                raise ValueError(f"`{option}` names a column that is not part of the endpoint")
            if len(set(names)) < len(names):
                raise ValueError(f"`{option}` names a column twice")
        return self

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key,) if isinstance(self.key, str) else tuple(self.key)

    @property
    def guarantee(self) -> Delivery:
        """The commit of the changes contains the mark of the batch."""
        return "exactly_once"

    @property
    def target(self) -> str:
        return self.name or ""

    @property
    def endpoint(self) -> str | None:
        return self.name

    @property
    def unserved(self) -> tuple[str, ...]:
        """Columns with the operation of a row."""
        return tuple(name for name in (self.delete, self.operation) if name is not None)

    @property
    def label(self) -> str:
        return f"endpoint {self.name}" + (f" by {', '.join(self.keys)}" if self.keys else "")

    @property
    def layout(self) -> dict[str, Any]:
        return {"key": list(self.keys), "indexes": [list(one) for one in self._indexes()], "text": list(self.text)}

    @property
    def has_unpublished(self) -> bool:
        """Whether the version it writes to is not served yet; that of a candidate is served at the switch."""
        found = self._place.found
        return self._builder is None and found is not None and not found.version.ready

    def of_flow(self, flow: str) -> EndpointSink:
        """Named like the flow, unless `name` is set."""
        if self.name is not None:
            return self
        if flow in _TAKEN:
            raise ProjectError(
                "endpoint-name",
                f"an endpoint cannot be called '{flow}', which is an address of the server itself",
                hint="give it another `name`",
            )
        return self.model_copy(update={"name": flow})

    def of_view(self, key: Sequence[str]) -> EndpointSink:
        refuse_options(self, "sequence", "delete", "operation")
        held = self.model_copy(update={"key": view_key(self, "key", self.keys, key)})
        held._of_view = True
        return held

    def check(self, context: Context) -> None:
        _ = context.log_path

    def check_rows(self, context: Context, columns: Sequence[str], output: str, schema: pa.Schema | None) -> None:
        """Updates need a key, and options name existing columns of a suitable type."""
        if output == "update" and not self.keys:
            raise ProjectError(
                "sink-needs-key",
                f"the flow's output is 'update', and sink {self.label} has no `key` to replace earlier rows by",
                hint="set key to the columns that identify a row, e.g. those after GROUP BY",
            )
        top_level = [*dict.fromkeys(name.partition(".")[0] for name in columns)]
        for option, names in (*self._named(), *self._beside_rows()):
            require_columns(self.label, option, names, top_level)
        for name in top_level:
            if name.startswith("__"):
                raise ProjectError(
                    "endpoint-column",
                    f"column '{name}' cannot be part of {self.label}: names that begin with two underscores are "
                    "Headrace's own",
                    hint="give it another name in SQL: AS",
                )
        if schema is not None and not any("." in name for name in columns):
            self._check_types(schema)

    def write_batch(self, rows: DataFrame, batch: Batch) -> None:
        shaped = structured(rows)
        endpoint = self.defined(spark_schema(shaped))
        conflicts = endpoint.conflicts if self.operation is not None else None
        self._commit(endpoint_rows.changes_of(shaped, self), endpoint, conflicts, batch)

    def write_changes(self, changes: DataFrame, key: Sequence[str], batch: Batch) -> None:
        """Commit the changes of a view. A new generation fills a new version."""
        shaped = structured(changes.drop(OLD))
        held = self.of_view(key)
        endpoint = replace(held.defined(spark_schema(shaped.drop(OP))), conflicts=_UPSERTS)
        held._commit(shaped, endpoint, None, batch)

    def write_few(self, changes: pa.Table, key: Sequence[str], batch: Batch) -> bool:
        """The driver stages them itself, which is faster than starting tasks."""
        if any("." in name for name in changes.column_names):
            return False
        held = self.of_view(key)
        endpoint = replace(held.defined(changes.drop_columns([OP, OLD]).schema), conflicts=_UPSERTS)
        held._commit(changes.drop_columns([OLD]), endpoint, None, batch)
        return True

    def defined(self, schema: pa.Schema) -> Endpoint:
        """The endpoint of rows with these columns."""
        assert self.name is not None, "a sink of a flow has a name"
        return Endpoint(
            name=self.name,
            columns=pa.schema([field for field in schema if field.name not in self.unserved]),
            key=self.keys,
            indexes=self._indexes(),
            text=tuple(self.text),
            conflicts=Conflicts(self.on_insert, self.on_update, self.on_delete),
            description=self.description,
        )

    def publish_caught_up(self, context: Context) -> None:
        """Serve the version that was being filled."""
        found = self._place.found
        LogFolder.of(context).publish(self.target, found.version.builder if found else None)
        self._place.found = None

    def rewind_effect(self, rewind: Rewind, replace: bool) -> str:
        if not replace:
            effect = "replace those of the same key" if self.keys else "are added to those already written"
            return f"{rewind.read_again}: their rows {effect}"
        plan = endpoint_rewind.plan_rewind(LogFolder.of(rewind.context), self.target, rewind)
        if plan is None:
            return f"nothing was written since; {rewind.read_again}"
        return (
            f"a new version is made of the first {plan.kept:,} of {plan.batches:,} batches and served instead of "
            f"version {plan.version.number}, which stays until it is dropped; {rewind.read_again}"
        )

    def take_back(self, rewind: Rewind) -> None:
        endpoint_rewind.go_back(LogFolder.of(rewind.context), self.target, rewind)

    def candidate_effect(self, candidate: Candidate) -> str:
        served = LogFolder.of(candidate.context).served(self.target)
        instead = f" instead of version {served}, which stays until it is dropped" if served is not None else ""
        return f"a new version is filled; at the switch requests get it{instead}"

    def candidate_sink(self, candidate: Candidate) -> Sink:
        made = self.model_copy()
        made._builder, made._place = _builder(candidate), _TargetVersion()
        return made

    def publish(self, candidate: Candidate, spark: SparkSession) -> None:
        LogFolder.of(candidate.context).publish(self.target, _builder(candidate))

    def drop_candidate(self, candidate: Candidate) -> None:
        LogFolder.of(candidate.context).forget(self.target, _builder(candidate))

    def _commit(
        self, changes: DataFrame | pa.Table, endpoint: Endpoint, conflicts: Conflicts | None, batch: Batch
    ) -> None:
        log = self._log(batch, endpoint)
        mark = Mark(_writer(batch), batch.generation, batch.batch_id)
        if log.has(mark):
            if not isinstance(changes, pa.Table):
                drain(changes)
            return
        report = Report.of(batch, self.label, self.on_error)
        step = endpoint_stage.StageStep(log.staging(mark), endpoint.changes, report, self.keys, conflicts)
        staged = endpoint_stage.staged(step, changes)
        parts = [
            SegmentPart(row["name"], row["rows"], row["bytes"], row["digest"]) for row in staged if row["number"] >= 0
        ]
        log.commit_parts(mark, parts)
        batch.tally.add(batch.flow, batch.sink, "written", sum(part.rows for part in parts))
        batch.tally.add_bytes(batch.flow, batch.sink, sum(part.bytes for part in parts))
        refused = sum(row["refused"] for row in staged)
        if refused:
            batch.tally.add(batch.flow, batch.sink, "refused", refused)

    def _log(self, batch: Batch, endpoint: Endpoint) -> Log:
        logs, found = LogFolder.of(batch.context), self._place.found
        if found is not None and found.fits(endpoint, batch.generation) and logs.has(found.version):
            return found.log
        builder = self._builder
        if self._of_view and builder is None:
            builder = view_builder(logs, endpoint.name, batch, _writer(batch))
        held = logs.newest(endpoint.name, builder)
        if held is not None and held.endpoint.fingerprint != endpoint.fingerprint:
            self._require_begun_anew(logs, held, batch)
        version = logs.settle(endpoint, builder)
        self._place.found = _KnownVersion(endpoint, batch.generation, version, logs.log(version))
        return self._place.found.log

    def _require_begun_anew(self, logs: LogFolder, held: Version, batch: Batch) -> None:
        """A new version must not be served without the rows that this generation wrote to the old one."""
        if logs.log(held).knows(_writer(batch), batch.generation):
            raise ProjectError(
                "endpoint-changed",
                f"the columns, key or indexes of {self.label} are not those of version {held.number}: a new version "
                "would lack the rows that are there",
                hint=f"take the change back, or fill a new version: headrace run --new-generation {batch.flow} "
                "--beside",
            )

    def _indexes(self) -> tuple[tuple[str, ...], ...]:
        return tuple((one,) if isinstance(one, str) else tuple(one) for one in self.indexes)

    def _named(self) -> Iterator[tuple[str, Sequence[str]]]:
        """Options that name columns of the endpoint."""
        yield "key", self.keys
        yield from (("indexes", one) for one in self._indexes())
        yield "text", self.text
        yield "sequence", [self.sequence] if self.sequence else []

    def _beside_rows(self) -> Iterator[tuple[str, Sequence[str]]]:
        """Options that name columns which are not part of it."""
        yield from (("delete", [self.delete]),) if self.delete else ()
        yield from (("operation", [self.operation]),) if self.operation else ()

    def _check_types(self, schema: pa.Schema) -> None:
        endpoint_rows.require_types(self, schema)


def _writer(batch: Batch) -> str:
    return f"{batch.flow}/{batch.sink}"


def _builder(candidate: Candidate) -> str:
    return f"{candidate.flow}/{candidate.sink}/{candidate.generation}"
