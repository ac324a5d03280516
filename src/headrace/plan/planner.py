"""From a project to a plan: who reads what, which columns, with which guarantee. Needs no Spark and no service."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from headrace.core.errors import ProjectError, ProjectErrors, did_you_mean, unknown_flow
from headrace.plan.model import FlowInput, FlowPlan, Input, LakeInput, Plan, StreamInput, flattened
from headrace.plan.realtime import realtime_obstacles
from headrace.plan.schemas import check_event_time, declared_schema, with_metadata, without_metadata
from headrace.plan.settings import refused
from headrace.plan.sinkids import sink_steps
from headrace.project.loader import Project
from headrace.project.model import FlowSpec, StreamSpec
from headrace.sql.columns import unknown_columns
from headrace.sql.lateness import LateRule, TimedInput, late_rules
from headrace.sql.query import Query, SqlError, parse
from headrace.sql.reads import Reads, reads
from headrace.sql.streaming import output_refusals, refusals, state_of

__all__ = ["SchemaOf", "declared_schema", "make_plan"]

# settings that change when Spark drops a row
_LATE_SETTINGS = ("spark.sql.streaming.statefulOperator.", "spark.sql.streaming.sessionWindow.")

SchemaOf = Callable[[str, StreamSpec], pa.Schema | None]


def make_plan(project: Project, only: Sequence[str] = (), schema_of: SchemaOf | None = None) -> Plan:
    """The plan of all flows, or of those named. ProjectErrors lists everything that is wrong with them.

    `schema_of` may know more than the files say, e.g. from a sample of the data.
    """
    for name in only:
        _check_asked(project, name)
    planner = _Planner(project, schema_of or (lambda _name, _spec: None))
    planner.check_settings(project.spec.spark.conf, "spark", "conf")
    for name in only or project.spec.flows:
        planner.plan(name)
    if planner.errors:
        raise ProjectErrors(planner.errors)
    flows = [flow for flow in planner.plans.values() if flow is not None]
    runnable = [flow for flow in flows if flow.sinks and (not only or flow.name in only)]
    return Plan(project.spec.project, tuple(runnable))


def _check_asked(project: Project, name: str) -> None:
    if name not in project.spec.flows:
        raise unknown_flow(name, project.spec.flows)
    if not project.spec.flows[name].sinks:
        raise ProjectError(
            "no-sinks",
            f"flow '{name}' has no sinks, so there is nothing to run",
            where=project.origin("flows", name),
            hint="give it a sink, e.g. sinks: [console], or run a flow that reads it",
        )


@dataclass
class _Planner:
    project: Project
    schema_of: SchemaOf
    plans: dict[str, FlowPlan | None] = field(default_factory=dict)
    """What has been planned, each flow after those it reads; None for those with errors."""
    queries: dict[str, Query] = field(default_factory=dict)
    schemas: dict[str, pa.Schema | None] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    errors: list[ProjectError] = field(default_factory=list)
    open: list[str] = field(default_factory=list)

    def plan(self, name: str) -> FlowPlan | None:
        if name in self.open:
            cycle = " → ".join([*self.open[self.open.index(name) :], name])
            hint = "let one of them read a stream instead"
            self._fail(ProjectError("flow-cycle", f"flows read each other in a circle: {cycle}", hint=hint), name)
            return None
        if name not in self.plans:
            self.open.append(name)
            before = len(self.errors)
            made = self._flow(name, self.project.spec.flows[name])
            self.open.pop()
            self.plans[name] = made if len(self.errors) == before else None
        return self.plans[name]

    def _flow(self, name: str, spec: FlowSpec) -> FlowPlan | None:
        try:
            query = self.queries[name] = parse(self.project.sql_of(name))
        except SqlError as error:
            self._fail_sql(error, name)
            return None
        inputs = self._inputs(name, query)
        if inputs is None:
            return None
        flow = self._assemble(name, spec, query, inputs)
        self._check_streaming(flow, query)
        self._check_sinks(flow)
        self.check_settings(spec.spark, "flows", name, "spark")
        return flow

    def _assemble(self, name: str, spec: FlowSpec, query: Query, inputs: tuple[Input, ...]) -> FlowPlan:
        defaults = self.project.spec.defaults
        inlined = [state for one in inputs if isinstance(one, FlowInput) for state in self._state(one.name)]
        state = tuple(dict.fromkeys([*inlined, *state_of(query)]))
        if state:
            inputs = _stateful(inputs, self._late_rules(spec, query, inputs))
        return FlowPlan(
            name=name,
            spec=spec,
            sql=query.text,
            inputs=inputs,
            output_columns=query.output,
            state=state,
            sinks=sink_steps(spec.sinks),
            trigger=spec.trigger or defaults.trigger,
            max_records=spec.max_records or defaults.max_records,
            partitions=spec.partitions or defaults.partitions,
        )

    def _late_rules(self, spec: FlowSpec, query: Query, inputs: tuple[Input, ...]) -> dict[str, LateRule]:
        """When rows of its inputs come too late; nothing when a setting may change what Spark does with them."""
        settings = (*self.project.spec.spark.conf, *spec.spark)
        if any(key.startswith(_LATE_SETTINGS) for key in settings):
            return {}
        timed = {}
        for one in flattened(inputs):
            if not isinstance(one, FlowInput):
                schema = self._schema(one.name)
                column = one.event_time.column if one.event_time else None
                timed[one.name] = TimedInput(column, None if schema is None else schema.names)
        return late_rules(query, timed, {name: self.queries[name] for name in _inlined(inputs)})

    def _state(self, name: str) -> tuple[str, ...]:
        planned = self.plans[name]
        return () if planned is None else planned.state

    def _inputs(self, name: str, query: Query) -> tuple[Input, ...] | None:
        """What a flow reads; None when something is wrong with it. Flows first: their own inputs come before it."""
        names = {n.lower(): n for n in (*self.project.spec.streams, *self.project.spec.flows)}
        self._check_known(name, query, names)
        known = {names[t.lower()]: self._schema(names[t.lower()]) for t in query.tables if t.lower() in names}
        if len(known) < len({table.lower() for table in query.tables}) or self.broken & set(known):
            return None
        complete = {n: schema for n, schema in known.items() if schema is not None}
        if len(complete) == len(known):
            for error in unknown_columns(query, complete):
                self._fail_sql(error, name)
        streams = self.project.spec.streams
        times = {n: s.event_time.column for n, s in streams.items() if s.event_time is not None}
        used = reads(query, complete, times)
        stateful = bool(state_of(query))
        words = query.words
        inputs = [self._input(n, known[n], used.get(n, Reads(None)), stateful, words) for n in known]
        return tuple(sorted(inputs, key=lambda one: not isinstance(one, FlowInput)))

    def _check_known(self, name: str, query: Query, names: dict[str, str]) -> None:
        for table in query.inputs:
            if table.name.lower() not in names:
                message = f"flow '{name}' reads '{table.name}', which is neither a stream nor a flow"
                hint = did_you_mean(table.name, names.values(), "streams and flows")
                self._fail_sql(query.error_at(table, "unknown-input", message, hint), name)

    def _input(self, name: str, schema: pa.Schema | None, used: Reads, stateful: bool, words: frozenset[str]) -> Input:
        if name in self.project.spec.flows:
            return self._flow_input(name, used)
        spec = self.project.spec.streams[name]
        plain = None if schema is None else without_metadata(schema, spec)
        filters = tuple(one for one in used.filters if one.column not in spec.source.metadata)
        named = used.columns is None or spec.event_time is None or spec.event_time.column in used.columns
        metadata = tuple(column for column in spec.source.metadata if column in words)
        return StreamInput(name, spec, plain, used.columns, filters, metadata, timed=stateful or named)

    def _flow_input(self, name: str, used: Reads) -> Input:
        upstream = self.plans[name]
        assert upstream is not None, f"{name} is read before it is planned"
        path = next((step.sink.lake_path for step in upstream.sinks if step.sink.lake_path is not None), None)
        if path is not None:
            return LakeInput(name, self.project.context.path(path), upstream.spec.event_time, columns=used.columns)
        return FlowInput(name, upstream.sql, upstream.inputs)

    def _schema(self, name: str) -> pa.Schema | None:
        """All columns of an input that a query may name; for a flow only the names are known."""
        if name in self.project.spec.flows:
            upstream = self.plan(name)
            if upstream is None:
                self.broken.add(name)
            if upstream is None or not _names_known(upstream):
                return None
            return pa.schema([(column, pa.null()) for column in upstream.output_columns])
        if name not in self.schemas:
            self.schemas[name] = None
            try:
                self.schemas[name] = self._stream_schema(name, self.project.spec.streams[name])
            except ProjectError as error:
                self.broken.add(name)
                self.errors.append(error)
        return self.schemas[name]

    def _stream_schema(self, name: str, spec: StreamSpec) -> pa.Schema | None:
        schema = declared_schema(self.project, name, spec)
        if schema is None:
            schema = self.schema_of(name, spec)
        if schema is None:
            return None
        check_event_time(self.project, name, spec, schema)
        return with_metadata(schema, spec)

    def _check_streaming(self, flow: FlowPlan, query: Query) -> None:
        if flow.spec.mode == "batch":
            return
        for inlined in (flow.name, *_inlined(flow.inputs)):
            # a flow that is inlined has been checked on its own unless it is for batches
            if inlined == flow.name or self.project.spec.flows[inlined].mode == "batch":
                for refusal in refusals(self.queries[inlined]):
                    self._fail_sql(refusal, inlined)
        if all(isinstance(one, StreamInput) for one in flow.inputs):
            times = [one.spec.event_time.column for one in flow.streams() if one.spec.event_time is not None]
            for refusal in output_refusals(query, flow.spec.output, times):
                self._fail_sql(refusal, flow.name)
        for reason in realtime_obstacles(flow) if flow.spec.mode == "realtime" else ():
            message = f"flow '{flow.name}' cannot run in real time: {reason}"
            error = ProjectError("realtime-unsupported", message, hint="use mode: micro_batch")
            self._fail(error, flow.name, "mode")

    def check_settings(self, settings: Mapping[str, str], *path: str) -> None:
        """Refuse Spark settings that would break what flows promise."""
        for key, only, reason in refused(settings):
            error = ProjectError("spark-setting-refused", f"{key} must be {only}: {reason}", hint="remove it")
            self.errors.append(error.at(self.project.origin(*path, key)))

    def _check_sinks(self, flow: FlowPlan) -> None:
        if not _names_known(flow):
            return
        for index, step in enumerate(flow.sinks):
            try:
                step.sink.check_rows(self.project.context, flow.output_columns, flow.spec.output, None)
            except ProjectError as error:
                self._fail(error, flow.name, "sinks", index)

    def _fail(self, error: ProjectError, *path: str | int) -> None:
        self.errors.append(error.at(self.project.origin("flows", *path)))

    def _fail_sql(self, error: SqlError, flow: str) -> None:
        self.errors.append(error.at(self.project.sql_origin(flow, error.line, error.offset)))


def _names_known(flow: FlowPlan) -> bool:
    """Whether the names of its columns can be told without Spark."""
    return all(column and column != "*" for column in flow.output_columns)


def _stateful(inputs: Sequence[Input], rules: Mapping[str, LateRule]) -> tuple[Input, ...]:
    """The inputs of a flow that keeps state, also those of flows that are part of it."""
    return tuple(
        replace(one, inputs=_stateful(one.inputs, rules))
        if isinstance(one, FlowInput)
        else replace(one, stateful=True, late=rules.get(one.name))
        for one in inputs
    )


def _inlined(inputs: Sequence[Input]) -> Iterator[str]:
    for one in inputs:
        if isinstance(one, FlowInput):
            yield one.name
            yield from _inlined(one.inputs)
