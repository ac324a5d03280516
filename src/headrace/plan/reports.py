"""Reports: flows that read the current rows of tables (`over: all`); each run replaces the result of the last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.core.capabilities import HoldsReport, HoldsView, lake_paths
from headrace.core.errors import ProjectError, did_you_mean
from headrace.core.sink import Sink
from headrace.plan.model import FlowPlan, StandingInput
from headrace.plan.sink_ids import sink_steps
from headrace.plan.view_planning import Placed, ShapeOf, input_names
from headrace.project.loader import Project
from headrace.project.model import FlowSpec
from headrace.sources.lake import LakeSource
from headrace.sql.query import Query


def report_of(
    name: str, query: Query, sinks: Sequence[Sink], project: Project, shape_of: ShapeOf
) -> tuple[FlowPlan | None, list[Placed]]:
    spec = project.spec.flows[name]
    problems = [*_obstacles(name, spec), *_refused_sinks(spec, sinks)]
    inputs: list[StandingInput] = []
    for input_name in input_names(query):
        try:
            inputs.append(_input(input_name, project, shape_of))
        except ProjectError as error:
            problems.append((error, ("sql",)))
    return (None if problems else _plan(name, query, inputs, sinks, project)), problems


def _input(name: str, project: Project, shape_of: ShapeOf) -> StandingInput:
    spec = project.spec
    names = {known_name.lower(): known_name for known_name in (*spec.flows, *spec.tables, *spec.streams)}
    if name not in names:
        message = f"a report reads '{name}', which is neither a stream, a table nor a flow"
        raise ProjectError("unknown-input", message, hint=did_you_mean(name, names))
    input_name = names[name]
    if input_name in spec.tables:
        return StandingInput(
            input_name, table=spec.tables[input_name], shape=shape_of(input_name, spec.tables[input_name])
        )
    if input_name in spec.flows:
        path = next(iter(lake_paths(spec.flows[input_name].sinks)), None)
    else:
        source = spec.streams[input_name].source
        path = source.path if isinstance(source, LakeSource) else None
    if path is None:
        raise ProjectError(
            "report-input",
            f"a report reads tables, and '{input_name}' has no table",
            hint="add a sink of type lake to the flow, or read a stream of a lake source or a table",
        )
    return StandingInput(input_name, path=project.context.path(path))


def _obstacles(name: str, spec: FlowSpec) -> Iterator[Placed]:
    for place in ("before", "after"):
        if getattr(spec, place):
            message = f"flow '{name}' is a report, and reports cannot have processors"
            yield ProjectError("report-steps", message, hint="express it in SQL"), (place,)


def _refused_sinks(spec: FlowSpec, sinks: Sequence[Sink]) -> Iterator[Placed]:
    for number, sink in enumerate(sinks):
        if isinstance(sink, HoldsView) and not spec.keys:
            message = f"sink {sink.label} replaces rows by key, and the report has none"
            hint = "give the flow a `key`: columns that are never the same in two rows of its result"
            yield ProjectError("sink-needs-key", message, hint=hint), ("sinks", number)
        elif not isinstance(sink, HoldsView | HoldsReport):
            message = f"sink {sink.label} only takes new rows, and a report replaces those of its last run"
            hint = "sinks for reports: files, and those that hold views, such as endpoint and lake"
            yield ProjectError("sink-takes-no-reports", message, hint=hint), ("sinks", number)


def _plan(
    name: str, query: Query, inputs: Sequence[StandingInput], sinks: Sequence[Sink], project: Project
) -> FlowPlan:
    spec, defaults = project.spec.flows[name], project.spec.defaults
    return FlowPlan(
        name=name,
        spec=spec,
        sql=query.sql,
        inputs=tuple(inputs),
        after=(),
        output_columns=query.output,
        state=(),
        sinks=sink_steps([sink.of_view(spec.keys) if isinstance(sink, HoldsView) else sink for sink in sinks]),
        trigger=spec.trigger or defaults.trigger,
        max_records=spec.max_records or defaults.max_records,
        partitions=spec.partitions or defaults.partitions,
    )
