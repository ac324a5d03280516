"""Which flows read what others write, apart from lake tables that they name: through topics, files and folders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sqlglot import exp

from headrace.core.context import Context
from headrace.core.places import Location
from headrace.core.processor import Processor
from headrace.plan.model import FlowInput, FlowPlan, Input, LakeInput, Plan
from headrace.sql.query import parse

ColumnValues = dict[str, tuple[str, ...]]
"""All texts that a column may hold, of columns of which that is known."""


def flow_feeds(plan: Plan, context: Context) -> dict[str, frozenset[str]]:
    """For each flow those whose sinks write to where its streams read, itself included where that is so."""
    written = {flow.name: list(_written_locations(flow, context)) for flow in plan.flows}
    read = {f.name: [place for one in f.streams() for place in one.spec.source.places(context)] for f in plan.flows}
    return {flow: frozenset(_writers(written, places)) for flow, places in read.items()}


def flow_waits(links: Mapping[str, frozenset[str]]) -> dict[str, frozenset[str]]:
    """For each flow those that feed it and are not fed by it in turn, directly or through others."""
    behind = {flow: _all_feeders(flow, links) for flow in links}
    return {flow: frozenset(one for one in behind[flow] if flow not in behind[one]) for flow in links}


def _all_feeders(flow: str, links: Mapping[str, frozenset[str]]) -> set[str]:
    """Everything that feeds a flow, through however many others."""
    found: set[str] = set()
    ahead = [flow]
    while ahead:
        new = links.get(ahead.pop(), frozenset()) - found
        found |= new
        ahead += new
    return found


def _writers(written: Mapping[str, list[Location]], read: list[Location]) -> Iterator[str]:
    for name, places in written.items():
        if any(one.meets(other) for one in places for other in read):
            yield name


def _written_locations(flow: FlowPlan, context: Context) -> Iterator[Location]:
    known = _column_values(flow.inputs, flow.sql)
    for step in flow.after:
        _apply_step(known, step.processor)
    for sink_step in flow.sinks:
        yield from sink_step.sink.places(context, known)


def _column_values(inputs: tuple[Input, ...], sql: str) -> ColumnValues:
    """What columns of a query may hold: texts in it, or what steps before it say."""
    found: ColumnValues = {}
    for one in inputs:
        if isinstance(one, FlowInput):
            found |= _column_values(one.inputs, one.sql)
            for step in one.after:
                _apply_step(found, step.processor)
        if not isinstance(one, LakeInput):
            for step in one.before:
                _apply_step(found, step.processor)
    _select(found, sql)
    return found


def _select(found: ColumnValues, sql: str) -> None:
    """What is known after a query."""
    for select in parse(sql).tree.selects:
        plain = select.unalias()
        texts = _string_values(plain)
        if texts is not None:
            found[select.alias_or_name] = texts
        elif not isinstance(plain, exp.Column | exp.Star):
            found.pop(select.alias_or_name, None)


def _apply_step(known: ColumnValues, step: Processor) -> None:
    known |= step.texts
    for statement in step.statements:
        _select(known, statement)


def _string_values(value: exp.Expr | None) -> tuple[str, ...] | None:
    """The texts that an expression may give, None when they are not written in it."""
    if isinstance(value, exp.Literal) and value.is_string:
        return (str(value.this),)
    if isinstance(value, exp.Case):
        branches = [*(one.args.get("true") for one in value.args["ifs"]), value.args.get("default")]
    elif isinstance(value, exp.If):
        branches = [value.args.get("true"), value.args.get("false")]
    else:
        return None
    parts = [_string_values(one) for one in branches if one is not None]
    return None if None in parts else tuple(text for part in parts for text in part or ())
