"""Runs the flows of a real project on rows of a test, without its services."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import TypeAdapter

from headrace.core.errors import Exit, ProjectError, did_you_mean, unknown_flow
from headrace.core.format import Format
from headrace.core.kinds import KindOf
from headrace.core.schema import to_ddl
from headrace.core.source import RowSource
from headrace.engine.flows.flow import FlowStarter
from headrace.engine.letters.dead_letters import read_dead_letters
from headrace.engine.letters.late_rows import read_late_rows
from headrace.engine.spark.failures import from_query
from headrace.engine.state.schemas import infer_schema
from headrace.engine.state.state import StateDir
from headrace.plan.model import FlowPlan
from headrace.plan.planner import make_plan
from headrace.project.loader import Project, load
from headrace.project.model import ProjectSpec, StreamSpec
from headrace.testing.lists import ListSink, ListSource, encode
from headrace.testing.tables import ListTables, kept_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class ProjectHarness:
    """Runs a project: `feed` streams and tables, `run` flows, read their `rows`; `restart` stops and starts them.

    Formats, event times, SQL and state are those of the project; sources and sinks are lists. A flow that reads another
    flow contains its query.
    """

    def __init__(self, project: Project | Path | str, spark: SparkSession) -> None:
        original = project if isinstance(project, Project) else load(Path(project))
        self._scratch = tempfile.TemporaryDirectory(prefix="headrace-test-")
        folder = Path(self._scratch.name)
        self._sources: dict[str, ListSource] = {}
        self._sinks: dict[str, ListSink] = {}
        self._queries: dict[str, StreamingQuery] = {}
        self._views: dict[str, tuple[str, ...]] = {}
        self._state = StateDir(folder / "state")
        spec = self._with_lists(original, folder)
        self.project = Project(original.root, spec, original.tree, original.secrets, original.profile)
        self._starter = FlowStarter(self.project, self._state, spark)
        self._tables = ListTables(original, self.project)

    def _with_lists(self, project: Project, folder: Path) -> ProjectSpec:
        streams, flows = {}, {}
        for name, stream in project.spec.streams.items():
            (folder / name).mkdir()
            self._sources[name] = ListSource(folder=str(folder / name))
            lists = {"source": self._sources[name], "format": _format_of(project, stream), "backfill": None}
            streams[name] = stream.model_copy(update=lists)
        for name, flow in project.spec.flows.items():
            self._sinks[name] = ListSink()
            mode = "micro_batch" if flow.mode == "realtime" else flow.mode
            update = {"sinks": [self._sinks[name]], "trigger": timedelta(0), "mode": mode}
            flows[name] = flow.model_copy(update=update)
        state = str(self._state.root)
        return project.spec.model_copy(update={"streams": streams, "flows": flows, "state": state})

    def feed(self, stream: str, rows: Sequence[Mapping[str, Any] | bytes | str]) -> None:
        """Feed one batch of rows to a stream, or of raw records as bytes or strings; or upsert rows into a table."""
        if stream in self.project.spec.tables:
            self._tables.feed(stream, [row for row in rows if isinstance(row, Mapping)])
            return
        if stream not in self._sources:
            hint = did_you_mean(stream, [*self._sources, *self.project.spec.tables], "streams and tables")
            raise ProjectError("unknown-stream", f"there is no stream '{stream}'", hint=hint, exit_code=Exit.NOT_FOUND)
        form = self.project.spec.streams[stream].format
        assert form is not None, "every stream of a harness has a format"
        self._sources[stream].feed(encode(rows, form, self.project.context))

    def delete(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        self._tables.delete(table, rows)

    def run(self, *flows: str) -> None:
        """Run flows (all by default) until they have processed everything fed."""
        plan = make_plan(self.project, flows, lambda n, s: infer_schema(self.project, self._state, n, s))
        self._views |= {flow.name: flow.view.key for flow in plan.flows if flow.view is not None}
        for flow in plan.flows:
            self._run(flow)

    def _run(self, flow: FlowPlan) -> None:
        query = self._queries.get(flow.name)
        if query is None or not query.isActive:
            query = self._queries[flow.name] = self._starter.start(flow)
        if flow.spec.mode == "batch":
            query.awaitTermination()
        else:
            query.processAllAvailable()
        if query.exception() is not None:
            raise from_query(flow, query.exception())

    def restart(self) -> None:
        """Stop all flows; the next `run` starts them from their checkpoints."""
        for query in self._queries.values():
            query.stop()
        self._queries.clear()

    def rows(self, flow: str) -> list[dict[str, Any]]:
        """All rows a flow has written; of a view, its current rows."""
        if flow not in self._sinks:
            raise unknown_flow(flow, self._sinks)
        written = self._sinks[flow].rows
        return kept_rows(written, self._views[flow]) if flow in self._views else written

    def dead_letters(self, flow: str | None = None) -> list[dict[str, Any]]:
        return list(read_dead_letters(self._state.dead_letters, flow).to_pylist())

    def late_rows(self, flow: str | None = None) -> list[dict[str, Any]]:
        """The rows so far that were too late for their windows."""
        return list(read_late_rows(self._state.late, flow).to_pylist())

    def close(self) -> None:
        """Stop all flows and remove the state."""
        self.restart()
        self._scratch.cleanup()

    def __enter__(self) -> ProjectHarness:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _format_of(project: Project, stream: StreamSpec) -> Format:
    """The stream's own format, or JSON with the columns of a source that has columns."""
    if stream.format is not None:
        return stream.format
    assert isinstance(stream.source, RowSource)
    columns = to_ddl(stream.source.row_schema(project.context))
    return TypeAdapter(Annotated[Format, KindOf("formats")]).validate_python({"type": "json", "columns": columns})
