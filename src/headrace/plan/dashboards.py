"""Checks that the charts of dashboards use existing endpoints and columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.core.capabilities import ServesEndpoint
from headrace.core.errors import ProjectError, did_you_mean
from headrace.plan.model import FlowPlan
from headrace.plan.sink_ids import endpoints
from headrace.project.dashboards import ChartSpec
from headrace.project.loader import Project


def chart_problems(project: Project, flows: Iterable[FlowPlan | None]) -> Iterator[ProjectError]:
    names = [name for _, _, name in endpoints(project)]
    columns = {name: served for flow in flows if flow is not None for name, served in _served(flow)}
    for dashboard, spec in project.spec.dashboards.items():
        for number, chart in enumerate(spec.charts):
            path = ("dashboards", dashboard, "charts", number)
            if chart.endpoint not in names:
                yield ProjectError(
                    "unknown-endpoint",
                    f"chart '{chart.title}' shows endpoint '{chart.endpoint}', which no flow writes",
                    where=project.origin(*path, "endpoint"),
                    hint=did_you_mean(chart.endpoint, names, "endpoints"),
                )
            for key, error in _unknown(chart, columns.get(chart.endpoint)):
                yield error.at(project.origin(*path, key))


def _served(flow: FlowPlan) -> Iterator[tuple[str, list[str]]]:
    """The endpoints of a flow with their columns, if those are known without Spark."""
    for step in flow.sinks if flow.names_known else ():
        if isinstance(step.sink, ServesEndpoint) and step.sink.endpoint is not None:
            heads = dict.fromkeys(column.partition(".")[0] for column in flow.output_columns)
            yield step.sink.endpoint, [head for head in heads if head not in step.sink.unserved]


def _unknown(chart: ChartSpec, columns: list[str] | None) -> Iterator[tuple[str, ProjectError]]:
    for key, column in chart.used_columns() if columns is not None else ():
        if columns is not None and column not in columns:
            message = f"chart '{chart.title}' uses the unknown column '{column}'"
            hint = did_you_mean(column, columns, f"columns of '{chart.endpoint}'")
            yield key, ProjectError("unknown-column", message, hint=hint)
