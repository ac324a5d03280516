"""Which flows read what others write, apart from lake tables that they name: through topics, files and folders."""

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

Known = dict[str, tuple[str, ...]]
"""All texts that a column may hold, of columns of which that is known."""


def feeds(plan: Plan, context: Context) -> dict[str, frozenset[str]]:
    """For each flow those whose sinks write to where its streams read, itself included where that is so."""
    written = {flow.name: list(_written(flow, context)) for flow in plan.flows}
    read = {flow.name: list(_read(flow, context)) for flow in plan.flows}
    return {flow: frozenset(_writers(written, places)) for flow, places in read.items()}


def waits(links: Mapping[str, frozenset[str]]) -> dict[str, frozenset[str]]:
    """For each flow those that feed it and are not fed by it in turn, directly or through others."""
    behind = {flow: _behind(flow, links) for flow in links}
    return {flow: frozenset(one for one in behind[flow] if flow not in behind[one]) for flow in links}


def _behind(flow: str, links: Mapping[str, frozenset[str]]) -> set[str]:
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


def _read(flow: FlowPlan, context: Context) -> Iterator[Location]:
    for stream in flow.streams():
        if isinstance(stream.spec.source, HasPlaces):
            yield from stream.spec.source.places(context)


def _written(flow: FlowPlan, context: Context) -> Iterator[Location]:
    known = _known(flow.inputs, flow.sql)
    for step in flow.after:
        _take(known, step.processor)
    for sink_step in flow.sinks:
        if isinstance(sink_step.sink, ReadableAsStream):
            yield from sink_step.sink.places(context, known)


def _known(inputs: tuple[Input, ...], sql: str) -> Known:
    """What columns of a query may hold: texts in it, or what steps before it say."""
    found: Known = {}
    for one in inputs:
        if isinstance(one, FlowInput):
            found |= _known(one.inputs, one.sql)
            for step in one.after:
                _take(found, step.processor)
        if not isinstance(one, LakeInput):
            for step in one.before:
                _take(found, step.processor)
    _select(found, sql)
    return found


def _select(found: Known, sql: str) -> None:
    """What is known after a query."""
    for select in parse(sql).tree.selects:
        plain = select.unalias()
        texts = _texts(plain)
        if texts is not None:
            found[select.alias_or_name] = texts
        elif not isinstance(plain, exp.Column | exp.Star):
            found.pop(select.alias_or_name, None)


def _take(known: Known, step: Processor) -> None:
    if isinstance(step, KnowsValues):
        known |= step.known_values
    for statement in step.statements if isinstance(step, RunsSql) else ():
        _select(known, statement)


def _texts(value: exp.Expr | None) -> tuple[str, ...] | None:
    """The texts that an expression may give, None when they are not written in it."""
    if isinstance(value, exp.Literal) and value.is_string:
        return (str(value.this),)
    if isinstance(value, exp.Case):
        branches = [*(one.args.get("true") for one in value.args["ifs"]), value.args.get("default")]
    elif isinstance(value, exp.If):
        branches = [value.args.get("true"), value.args.get("false")]
    else:
        return None
    parts = [_texts(one) for one in branches if one is not None]
    return None if None in parts else tuple(text for part in parts for text in part or ())
