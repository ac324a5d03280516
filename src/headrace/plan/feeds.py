"""Which flows feed others through topics, files and folders; lake tables of flows are inputs by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sqlglot import exp

from headrace.core.capabilities import ReadableAsStream
from headrace.core.context import Context
from headrace.core.places import Location
from headrace.core.processor import KnowsValues, Processor, RunsSql
from headrace.core.source import HasPlaces
from headrace.plan.model import FlowInput, FlowPlan, Input, LakeInput, Plan
from headrace.sql.query import parse

ColumnValues = dict[str, tuple[str, ...]]
"""By column, all strings it may hold, where they are known."""


def flow_feeds(plan: Plan, context: Context) -> dict[str, frozenset[str]]:
    """For each flow, the flows whose sinks write where its streams read; possibly itself."""
    written = {flow.name: list(_written_locations(flow, context)) for flow in plan.flows}
    read = {flow.name: list(_read_locations(flow, context)) for flow in plan.flows}
    return {flow: frozenset(_writers(written, places)) for flow, places in read.items()}


def flow_waits(links: Mapping[str, frozenset[str]]) -> dict[str, frozenset[str]]:
    """For each flow, the flows that feed it, directly or indirectly, and that it does not feed in turn."""
    feeders = {flow: _all_feeders(flow, links) for flow in links}
    return {flow: frozenset(feeder for feeder in feeders[flow] if flow not in feeders[feeder]) for flow in links}


def _all_feeders(flow: str, links: Mapping[str, frozenset[str]]) -> set[str]:
    """All flows that feed a flow, directly or indirectly."""
    feeders: set[str] = set()
    pending = [flow]
    while pending:
        new = links.get(pending.pop(), frozenset()) - feeders
        feeders |= new
        pending += new
    return feeders


def _writers(written: Mapping[str, list[Location]], read: list[Location]) -> Iterator[str]:
    for name, locations in written.items():
        if any(location.meets(read_location) for location in locations for read_location in read):
            yield name


def _read_locations(flow: FlowPlan, context: Context) -> Iterator[Location]:
    for stream in flow.streams():
        if isinstance(stream.spec.source, HasPlaces):
            yield from stream.spec.source.places(context)


def _written_locations(flow: FlowPlan, context: Context) -> Iterator[Location]:
    values = _column_values(flow.inputs, flow.sql)
    for step in flow.after:
        _apply_step(values, step.processor)
    for sink_step in flow.sinks:
        if isinstance(sink_step.sink, ReadableAsStream):
            yield from sink_step.sink.places(context, values)


def _column_values(inputs: tuple[Input, ...], sql: str) -> ColumnValues:
    """The strings that columns of a query may hold: literals in it, or values set by steps before it."""
    values: ColumnValues = {}
    for input_ in inputs:
        if isinstance(input_, FlowInput):
            values |= _column_values(input_.inputs, input_.sql)
            for step in input_.after:
                _apply_step(values, step.processor)
        if not isinstance(input_, LakeInput):
            for step in input_.before:
                _apply_step(values, step.processor)
    _select(values, sql)
    return values


def _select(values: ColumnValues, sql: str) -> None:
    """Update the known values with the columns of a query."""
    for select in parse(sql).tree.selects:
        expression = select.unalias()
        strings = _string_values(expression)
        if strings is not None:
            values[select.alias_or_name] = strings
        elif not isinstance(expression, exp.Column | exp.Star):
            values.pop(select.alias_or_name, None)


def _apply_step(values: ColumnValues, step: Processor) -> None:
    if isinstance(step, KnowsValues):
        values |= step.known_values
    for statement in step.statements if isinstance(step, RunsSql) else ():
        _select(values, statement)


def _string_values(value: exp.Expr | None) -> tuple[str, ...] | None:
    """The strings that an expression may return; None if they are not literals."""
    if isinstance(value, exp.Literal) and value.is_string:
        return (str(value.this),)
    if isinstance(value, exp.Case):
        branches = [*(branch.args.get("true") for branch in value.args["ifs"]), value.args.get("default")]
    elif isinstance(value, exp.If):
        branches = [value.args.get("true"), value.args.get("false")]
    else:
        return None
    parts = [_string_values(branch) for branch in branches if branch is not None]
    return None if None in parts else tuple(string for part in parts for string in part or ())
