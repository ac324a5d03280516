"""Plans the flows of a project: inputs, columns, state, guarantees. Needs no Spark and no service."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa

from headrace.core.capabilities import lake_paths, sink_of_flow, sink_of_view
from headrace.core.errors import ProjectError, ProjectErrors, did_you_mean, unknown_flow
from headrace.core.processor import FlowLakeTable, RunsSql
from headrace.core.sink import Sink
from headrace.functions.expansion import expand
from headrace.functions.user import UserFunction, user_functions
from headrace.plan.dashboards import chart_problems
from headrace.plan.flow_selection import check_runnable
from headrace.plan.functions import function_problems, python_functions
from headrace.plan.model import FlowInput, FlowPlan, Input, LakeInput, Plan, ProcessorStep, StreamInput, all_inputs
from headrace.plan.processor_steps import (
    ProjectFacts,
    columns_needed,
    inlined_inputs,
    lost_event_times,
    output_of,
    state_descriptions,
    step_refusals,
    steps_at,
    steps_of,
)
from headrace.plan.realtime import realtime_obstacles
from headrace.plan.reports import report_of
from headrace.plan.schemas import check_event_time, declared_schema, with_metadata, without_metadata
from headrace.plan.settings import refused_settings
from headrace.plan.sink_ids import repeated_endpoints, sink_steps
from headrace.plan.view_planning import ShapeOf, known_shape, reads_tables, view_obstacles, view_of, view_plan
from headrace.plan.view_planning import ViewReads as ViewReads
from headrace.project.loader import Project
from headrace.project.model import FlowSpec, StreamSpec
from headrace.sql.columns import unknown_columns
from headrace.sql.dialect.dotted import check_dotted
from headrace.sql.dialect.translate import DialectInput, translate
from headrace.sql.input_reads import InputReads, input_reads
from headrace.sql.lateness import LateRule, TimedInput, late_rules
from headrace.sql.query import Query, SqlError, parse
from headrace.sql.streaming import output_refusals, refusals, state_of

__all__ = ["SchemaOf", "declared_schema", "make_plan"]

# settings that change when Spark drops a late row
_LATE_SETTINGS = ("spark.sql.streaming.statefulOperator.", "spark.sql.streaming.sessionWindow.")

SchemaOf = Callable[[str, StreamSpec], pa.Schema | None]


def make_plan(
    project: Project,
    only: Sequence[str] = (),
    schema_of: SchemaOf | None = None,
    shape_of: ShapeOf | None = None,
) -> Plan:
    """The plan of all flows, or of those in `only`. Raises ProjectErrors with all errors of the flows.

    `schema_of` may know more than the files, e.g. from a sample of the data; `shape_of` likewise for tables.
    """
    for name in only:
        check_runnable(project, name)
    planner = _Planner(project, schema_of or (lambda _name, _spec: None), shape_of or partial(known_shape, project))
    planner.find_functions()
    planner.check_settings(project.spec.spark.conf, "spark", "conf")
    planner.errors += repeated_endpoints(project)
    for name in only or project.spec.flows:
        planner.plan(name)
    if not only:
        planner.errors += chart_problems(project, planner.plans.values())
    if planner.errors:
        raise ProjectErrors(planner.errors)
    flows = [flow for flow in planner.plans.values() if flow is not None]
    runnable = [flow for flow in flows if flow.sinks and (not only or flow.name in only)]
    return Plan(project.spec.project, tuple(runnable))


@dataclass
class _Planner:
    project: Project
    schema_of: SchemaOf
    shape_of: ShapeOf
    plans: dict[str, FlowPlan | None] = field(default_factory=dict)
    """The planned flows, each after those it reads; None for flows with errors."""
    queries: dict[str, Query] = field(default_factory=dict)
    schemas: dict[str, pa.Schema | None] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    errors: list[ProjectError] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    functions: dict[str, UserFunction] = field(default_factory=dict)
    steps: dict[tuple[str, str], tuple[ProcessorStep, ...]] = field(default_factory=dict)
    """The bound processors by flow and place (`after`, `before.orders`)."""

    def find_functions(self) -> None:
        try:
            self.functions = user_functions(self.project.root)
        except ProjectError as error:
            self.errors.append(error)

    def plan(self, name: str) -> FlowPlan | None:
        if name in self.open:
            cycle = " → ".join([*self.open[self.open.index(name) :], name])
            hint = "let one of them read a stream"
            self._fail(ProjectError("flow-cycle", f"flows read each other in a cycle: {cycle}", hint=hint), name)
            return None
        if name not in self.plans:
            self.open.append(name)
            before = len(self.errors)
            flow = self._flow(name, self.project.spec.flows[name])
            self.open.pop()
            self.plans[name] = flow if len(self.errors) == before else None
        return self.plans[name]

    def _flow(self, name: str, spec: FlowSpec) -> FlowPlan | None:
        try:
            query = self.queries[name] = parse(self.project.sql_of(name))
            if spec.over == "all":
                return self._report(name, spec, query)
        except SqlError as error:
            self._fail_sql(error, name)
            return None
        if reads_tables(query, self.project.spec, self.plan):
            return self._view(name, spec, query)
        self._bind(name, spec)
        known = self._input_schemas(name, query)
        if known is None:
            return None
        try:
            query = self.queries[name] = expand(self._translated(spec, query, known), self.functions)
            check_dotted(query)
        except SqlError as error:
            self._fail_sql(error, name)
            return None
        for problem in function_problems(query.sql, self.functions, self.project):
            self.errors.append(problem.at(self.project.sql_origin(name, 1)))
        flow = self._assemble(name, spec, query, self._inputs(name, query, known))
        self._check_streaming(flow, query)
        self._check_sinks(flow)
        self.check_settings(spec.spark, "flows", name, "spark")
        return flow

    def _report(self, name: str, spec: FlowSpec, query: Query) -> FlowPlan | None:
        expanded = expand(query, self.functions)
        flow, problems = report_of(name, expanded, self._sinks(name, spec), self.project, self.shape_of)
        for error, place in problems:
            self._fail(error, name, *place)
        return flow

    def _view(self, name: str, spec: FlowSpec, query: Query) -> FlowPlan | None:
        read = ViewReads.of(query, self.project.spec.tables, self.plans, self.shape_of)
        for error, place in view_obstacles(name, spec, read.others):
            self._fail(error, name, *place)
        if read.others:
            return None
        try:
            text = expand(query, self.functions).sql
            view = view_of(spec, text, read)
            sinks = self._sinks(name, spec, None if view is None else view.key)
            flow = view_plan(name, spec, text, read, view, sinks, self.project.spec.defaults)
        except SqlError as error:
            self._fail_sql(error, name)
            return None
        except ProjectError as error:
            self.errors.append(error.at(self.project.sql_origin(name, 1)))
            return None
        self.check_settings(spec.spark, "flows", name, "spark")
        return flow

    def _bind(self, name: str, spec: FlowSpec) -> None:
        """Bind the processors of a flow to the project."""
        project_facts = ProjectFacts(self.project.context, self._lake_table, self.functions, spec.mode)
        for place, processors in (
            ("after", spec.after),
            *((f"before.{input_name}", spec.before[input_name]) for input_name in spec.before),
        ):
            bound = []
            for number, processor in enumerate(processors):
                try:
                    bound.append(processor.bound(project_facts))
                except ProjectError as error:
                    self._fail(error, name, *place.split("."), number)
            self.steps[name, place] = steps_of(place, bound)

    def _lake_table(self, flow: str) -> FlowLakeTable:
        """The lake table of a flow, for a step of another flow."""
        if flow not in self.project.spec.flows:
            raise unknown_flow(flow, self.project.spec.flows)
        planned = self.plan(flow)
        sinks = self.project.spec.flows[flow].sinks
        path = next(iter(lake_paths(sinks)), None)
        if path is None:
            message = f"flow '{flow}' has no lake table"
            raise ProjectError("flow-without-table", message, hint="add a sink of type lake")
        columns = planned.output_columns if planned is not None and planned.names_known else None
        return FlowLakeTable(path, columns)

    def _assemble(self, name: str, spec: FlowSpec, query: Query, inputs: tuple[Input, ...]) -> FlowPlan:
        defaults = self.project.spec.defaults
        after = self.steps[name, "after"]
        input_state = [
            state for input_ in inputs if isinstance(input_, FlowInput) for state in self._state(input_.name)
        ]
        input_state += [state for input_ in inputs for state in state_descriptions(input_.before)]
        state = tuple(dict.fromkeys([*input_state, *state_of(query), *state_descriptions(after)]))
        if state:
            for error, input_ in lost_event_times(inputs, self._schema):
                self._fail(error, name, "before", input_)
            inputs = _stateful(inputs, self._late_rules(spec, query, inputs))
        return FlowPlan(
            name=name,
            spec=spec,
            sql=query.sql,
            inputs=inputs,
            functions=python_functions([query.sql, *self._other_texts(inputs, after)], self.functions),
            after=after,
            output_columns=self._output_columns(name, query, after),
            state=state,
            sinks=sink_steps(self._sinks(name, spec)),
            trigger=spec.trigger or defaults.trigger,
            max_records=spec.max_records or defaults.max_records,
            partitions=spec.partitions or defaults.partitions,
        )

    def _sinks(self, name: str, spec: FlowSpec, key: Sequence[str] | None = None) -> list[Sink]:
        """The sinks of a flow, bound to it; those of a view are bound to its key."""
        sinks = []
        for index, sink in enumerate(spec.sinks):
            try:
                flow_sink = sink_of_flow(sink, name)
                sinks.append(flow_sink if key is None else sink_of_view(flow_sink, key))
            except ProjectError as error:
                self._fail(error, name, "sinks", index)
        return sinks

    def _other_texts(self, inputs: tuple[Input, ...], after: tuple[ProcessorStep, ...]) -> Iterator[str]:
        for input_ in _inlined(inputs):
            yield self.queries[input_].sql
        for step in (*(step for input_ in all_inputs(inputs) for step in steps_at(input_)), *after):
            if isinstance(step.processor, RunsSql):
                yield from step.processor.statements

    def _output_columns(self, name: str, query: Query, after: tuple[ProcessorStep, ...]) -> tuple[str, ...]:
        if not after:
            return query.output
        if any(column in ("", "*") for column in query.output):
            return ("*",)
        query_columns = pa.schema([(column, pa.null()) for column in query.output])
        output = output_of(after, query_columns, lambda error, number: self._fail(error, name, "after", number))
        return query.output if output is None else tuple(output.names)

    def _late_rules(self, spec: FlowSpec, query: Query, inputs: tuple[Input, ...]) -> dict[str, LateRule]:
        """When rows of its inputs are too late; empty if a setting may change how Spark treats them."""
        settings = (*self.project.spec.spark.conf, *spec.spark)
        if any(key.startswith(_LATE_SETTINGS) for key in settings):
            return {}
        timed = {}
        for input_ in all_inputs(inputs):
            if not isinstance(input_, FlowInput):
                schema = self._schema(input_.name) if not input_.before else None
                column = input_.event_time.column if input_.event_time else None
                timed[input_.name] = TimedInput(column, None if schema is None else schema.names)
        return late_rules(query, timed, {name: self.queries[name] for name in _inlined(inputs)})

    def _state(self, name: str) -> tuple[str, ...]:
        planned = self.plans[name]
        return () if planned is None else planned.state

    def _input_schemas(self, name: str, query: Query) -> dict[str, pa.Schema | None] | None:
        """The inputs of a flow with their columns as far as known; None after an error."""
        names = {n.lower(): n for n in (*self.project.spec.streams, *self.project.spec.flows)}
        self._check_known(name, query, names)
        schemas = {names[t.lower()]: self._schema(names[t.lower()]) for t in query.tables if t.lower() in names}
        if len(schemas) < len({table.lower() for table in query.tables}) or self.broken & set(schemas):
            return None
        return self._after_steps(name, schemas)

    def _after_steps(self, name: str, schemas: dict[str, pa.Schema | None]) -> dict[str, pa.Schema | None] | None:
        """The columns of the inputs as the SQL sees them; None if a step refuses its input."""
        before, errors_before = self.project.spec.flows[name].before, len(self.errors)
        for input_name in before.keys() - schemas.keys():
            message = f"flow '{name}' has steps before '{input_name}', which its SQL does not read"
            error = ProjectError("unknown-input", message, hint=did_you_mean(input_name, schemas, "inputs"))
            self._fail(error, name, "before", input_name)
        visible = dict(schemas)
        for input_, schema in schemas.items():
            if schema is not None and input_ in before:
                refused = partial(self._refused_step, name, input_)
                visible[input_] = output_of(self.steps[name, f"before.{input_}"], schema, refused)
        return visible if len(self.errors) == errors_before else None

    def _refused_step(self, flow: str, input_name: str, error: ProjectError, number: int) -> None:
        self._fail(error, flow, "before", input_name, number)

    def _translated(self, spec: FlowSpec, query: Query, schemas: Mapping[str, pa.Schema | None]) -> Query:
        """The query as Spark SQL: Dagger's own syntax is rewritten."""
        inputs = {}
        for name, schema in schemas.items():
            spec_ = self.project.spec.streams.get(name) or self.project.spec.flows[name]
            event_time = spec_.event_time
            inputs[name] = (
                DialectInput(schema)
                if event_time is None
                else DialectInput(schema, event_time.column, event_time.alias)
            )
        return translate(query, inputs, dagger=spec.dialect == "dagger")

    def _inputs(self, name: str, query: Query, schemas: Mapping[str, pa.Schema | None]) -> tuple[Input, ...]:
        """The inputs of a flow, flows first."""
        complete = {n: schema for n, schema in schemas.items() if schema is not None}
        if len(complete) == len(schemas):
            for error in unknown_columns(query, complete):
                self._fail_sql(error, name)
        streams = self.project.spec.streams
        times = {n: s.event_time.column for n, s in streams.items() if s.event_time is not None}
        used = input_reads(query, complete, times)
        steps = {n: self.steps.get((name, f"before.{n}"), ()) for n in schemas}
        stateful = bool(state_of(query) or any(map(state_descriptions, [*steps.values(), self.steps[name, "after"]])))
        words = query.words
        inputs = [self._input(n, used.get(n, InputReads(None)), stateful, words, steps[n]) for n in schemas]
        return tuple(sorted(inputs, key=lambda input_: not isinstance(input_, FlowInput)))

    def _check_known(self, name: str, query: Query, names: dict[str, str]) -> None:
        for table in query.inputs:
            if table.name.lower() not in names:
                message = f"flow '{name}' reads '{table.name}', which is neither a stream, a table nor a flow"
                known = [*names.values(), *self.project.spec.tables]
                hint = did_you_mean(table.name, known, "streams, tables and flows")
                self._fail_sql(query.error_at(table, "unknown-input", message, hint), name)

    def _input(
        self, name: str, used: InputReads, stateful: bool, words: frozenset[str], before: tuple[ProcessorStep, ...]
    ) -> Input:
        if before:
            # a step may change the filtered column, or need rows that the filter would drop
            used = InputReads(columns_needed(before, used.columns, self._schema(name)))
            words = words | frozenset(used.columns or ())
        if name in self.project.spec.flows:
            return replace(self._flow_input(name, used), before=before)
        schema = self._schema(name)
        spec = self.project.spec.streams[name]
        record_schema = None if schema is None else without_metadata(schema, spec)
        filters = tuple(filter_ for filter_ in used.filters if filter_.column not in spec.source.metadata)
        time_used = used.columns is None or spec.event_time is None or spec.event_time.column in used.columns
        metadata = tuple(column for column in spec.source.metadata if column in words)
        has_history = spec.backfill is not None and spec.backfill.until is not None
        timed = stateful or time_used or has_history
        return StreamInput(name, spec, record_schema, used.columns, filters, metadata, timed=timed, before=before)

    def _flow_input(self, name: str, used: InputReads) -> Input:
        upstream = self.plans[name]
        assert upstream is not None, f"{name} is read before it is planned"
        path = next(iter(lake_paths(step.sink for step in upstream.sinks)), None)
        if path is not None:
            return LakeInput(name, self.project.context.path(path), upstream.spec.event_time, columns=used.columns)
        after = tuple(step.within(name) for step in upstream.after)
        return FlowInput(name, upstream.sql, inlined_inputs(name, upstream.inputs), after)

    def _schema(self, name: str) -> pa.Schema | None:
        """All columns of an input that a query may use; for a flow only the names are known."""
        if name in self.project.spec.flows:
            upstream = self.plan(name)
            if upstream is None:
                self.broken.add(name)
            if upstream is None or not upstream.names_known:
                return None
            # readers see `driver.name` as a field of the column `driver`, as sinks do
            heads = dict.fromkeys(column.partition(".")[0] for column in upstream.output_columns)
            return pa.schema([(column, pa.null()) for column in heads])
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
        for error, key in step_refusals(flow):
            self._fail(error, flow.name, key)
        if flow.spec.mode == "batch":
            return
        for inlined in (flow.name, *_inlined(flow.inputs)):
            # an inlined flow was checked by itself unless its mode is batch
            if inlined == flow.name or self.project.spec.flows[inlined].mode == "batch":
                for refusal in refusals(self.queries[inlined]):
                    self._fail_sql(refusal, inlined)
        if all(isinstance(input_, StreamInput) for input_ in flow.inputs):
            times = [input_.spec.event_time.column for input_ in flow.streams() if input_.spec.event_time is not None]
            for refusal in output_refusals(query, flow.spec.output, times):
                self._fail_sql(refusal, flow.name)
        for reason in realtime_obstacles(flow) if flow.spec.mode == "realtime" else ():
            message = f"flow '{flow.name}' cannot run in real time: {reason}"
            error = ProjectError("realtime-unsupported", message, hint="use mode: micro_batch")
            self._fail(error, flow.name, "mode")

    def check_settings(self, settings: Mapping[str, str], *path: str) -> None:
        for key, only, reason in refused_settings(settings):
            error = ProjectError("spark-setting-refused", f"{key} must be {only}: {reason}", hint="remove it")
            self.errors.append(error.at(self.project.origin(*path, key)))

    def _check_sinks(self, flow: FlowPlan) -> None:
        if not flow.names_known:
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


def _stateful(inputs: Sequence[Input], rules: Mapping[str, LateRule]) -> tuple[Input, ...]:
    """Marks the inputs of a stateful flow, also those of inlined flows."""
    return tuple(
        replace(input_, inputs=_stateful(input_.inputs, rules))
        if isinstance(input_, FlowInput)
        else replace(input_, stateful=True, late=rules.get(input_.name))
        if isinstance(input_, StreamInput | LakeInput)
        else input_
        for input_ in inputs
    )


def _inlined(inputs: Sequence[Input]) -> Iterator[str]:
    for input_ in inputs:
        if isinstance(input_, FlowInput):
            yield input_.name
            yield from _inlined(input_.inputs)
