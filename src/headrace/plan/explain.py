"""The plan for people and programs: as text, as JSON and as a graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace.core.durations import format_duration
from headrace.plan.compare import ChangeVerdict
from headrace.plan.model import (
    FlowInput,
    FlowPlan,
    Input,
    LakeInput,
    Plan,
    ProcessorStep,
    StandingInput,
    StreamInput,
    TableInput,
)


def to_json(plan: Plan, changes: Mapping[str, Mapping[str, Any]] | None = None) -> dict[str, Any]:
    """The plan as JSON. `changes` says, by flow, what has changed since it was last started."""
    known = changes or {}
    return {
        "project": plan.project,
        "flows": [{**_flow_json(flow), "change": known.get(flow.name)} for flow in plan.flows],
    }


def _flow_json(flow: FlowPlan) -> dict[str, Any]:
    return {
        "name": flow.name,
        "description": flow.spec.description,
        "mode": flow.spec.mode,
        "output": flow.spec.output,
        "trigger": format_duration(flow.trigger),
        "max_records": flow.max_records,
        "partitions": flow.partitions,
        "guarantee": flow.guarantee,
        "state": list(flow.state),
        "view": bool(flow.tables()),
        "key": None if flow.view is None else list(flow.view.key),
        "inputs": [_input_json(one) for one in flow.inputs],
        "after": _steps_json(flow.after),
        "columns": list(flow.output_columns),
        "sinks": [
            {"id": s.id, "type": s.sink.kind(), "label": s.sink.label, "guarantee": s.sink.guarantee}
            for s in flow.sinks
        ],
    }


def _input_json(one: Input) -> dict[str, Any]:
    match one:
        case StreamInput():
            return {
                "name": one.name,
                "kind": "stream",
                "source": {"type": one.spec.source.kind(), "label": one.spec.source.label},
                "format": one.spec.format.kind() if one.spec.format else None,
                "columns": None if one.columns is None else list(one.columns),
                "filters": [str(f) for f in one.filters],
                "event_time": one.event_time.column if one.event_time else None,
                "watermark": format_duration(one.event_time.watermark) if one.event_time else None,
                "on_error": one.spec.on_error,
                "backfill": _backfill_json(one),
                "before": _steps_json(one.before),
            }
        case LakeInput():
            return {"name": one.name, "kind": "flow", "through": "lake", "before": _steps_json(one.before)}
        case FlowInput():
            return {
                "name": one.name,
                "kind": "flow",
                "through": "inlined",
                "inputs": [_input_json(i) for i in one.inputs],
                "before": _steps_json((*one.after, *one.before)),
            }
        case StandingInput():
            return {"name": one.name, "kind": "flow" if one.table is None else "table", "through": "as it stands"}
        case TableInput():
            return {
                "name": one.name,
                "kind": "table",
                "source": {"type": one.spec.source.kind(), "label": one.spec.source.label},
                "columns": None if one.shape is None else one.shape.columns.names,
                "key": None if one.shape is None else list(one.shape.key),
            }


def _backfill_json(one: StreamInput) -> dict[str, Any] | None:
    found = one.spec.backfill
    return None if found is None else {"label": found.label, "seam": found.seam}


def _steps_json(steps: Sequence[ProcessorStep]) -> list[dict[str, Any]]:
    return [{"id": step.id, "type": step.processor.kind(), "label": step.processor.label} for step in steps]


def to_dot(plan: Plan) -> str:
    """The plan as a Graphviz graph."""
    lines = [f"digraph {plan.project} {{", "  rankdir=LR;", '  node [shape=box, fontname="sans-serif"];']
    for flow in plan.flows:
        lines.append(f'  "flow {flow.name}" [label="{flow.name}\\n{flow.spec.mode}, {flow.guarantee}", style=rounded];')
        for one in flow.inputs:
            lines.append(f'  "{_node(one)}" -> "flow {flow.name}"{_edge(one)};')
        for step in flow.sinks:
            lines.append(f'  "flow {flow.name}" -> "{_escape(step.sink.label)}";')
    return "\n".join([*dict.fromkeys(lines), "}"])


def _node(one: Input) -> str:
    match one:
        case StreamInput():
            return f"stream {one.name}"
        case TableInput():
            return f"table {one.name}"
        case _:
            return f"flow {one.name}"


def _edge(one: Input) -> str:
    if isinstance(one, StreamInput) and one.columns is not None:
        return f' [label="{_escape(", ".join(one.columns))}"]'
    return ""


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def to_text(plan: Plan, changes: Mapping[str, Mapping[str, Any]] | None = None) -> Iterator[str]:
    """The plan line by line."""
    for flow in plan.flows:
        state = f", state: {', '.join(flow.state)}" if flow.state else ", a view" if flow.tables() else ", stateless"
        if flow.is_report:
            state = ", a report"
        pace = (
            (f"at {flow.spec.schedule.cron}" if flow.spec.schedule else "once")
            if flow.spec.mode == "batch"
            else "in real time"
            if flow.spec.mode == "realtime"
            else f"every {format_duration(flow.trigger)}"
        )
        yield f"flow {flow.name}  ({pace}, {flow.guarantee}{state})"
        for one in flow.inputs:
            yield from _input_text(one, "  ")
        yield from _steps_text(flow.after, "  ")
        key = f"  by {', '.join(flow.view.key)}" if flow.view is not None and flow.view.key else ""
        yield f"  → {', '.join(flow.output_columns)}{key}"
        for step in flow.sinks:
            yield f"  ▸ {step.sink.label}  ({step.sink.guarantee})"
        change = (changes or {}).get(flow.name)
        if change is not None and change["generation"] is not None:
            yield f"  ⟳ {change_summary(change)}"
            yield from (f"    {reason}" for reason in change["reasons"])


def change_summary(change: Mapping[str, Any]) -> str:
    """What a change means, for people."""
    verdict = ChangeVerdict(change["verdict"], tuple(change["reasons"]))
    beside = f", built beside {change['beside']}" if change.get("beside") else ""
    return f"generation {change['generation']}{beside}: {verdict.words}"


def _steps_text(steps: Sequence[ProcessorStep], indent: str) -> Iterator[str]:
    for step in steps:
        yield f"{indent}▹ {step.processor.label}"


def _input_text(one: Input, indent: str) -> Iterator[str]:
    match one:
        case StreamInput():
            form = f", {one.spec.format.kind()}" if one.spec.format else ""
            columns = "all columns" if one.columns is None else f"columns {', '.join(one.columns) or 'none'}"
            yield f"{indent}◂ {one.name}: {one.spec.source.label}{form}; {columns}"
            if one.spec.backfill:
                yield f"{indent}  first the history in {one.spec.backfill.label}, up to {one.spec.backfill.seam}"
            if one.filters:
                yield f"{indent}  only rows where {' and '.join(str(f) for f in one.filters)}"
            if one.event_time:
                wait = format_duration(one.event_time.watermark)
                yield f"{indent}  event time {one.event_time.column}, waits {wait} for late records"
            yield from _steps_text(one.before, indent + "  ")
        case LakeInput():
            yield f"{indent}◂ {one.name}: the lake table of that flow"
            yield from _steps_text(one.before, indent + "  ")
        case FlowInput():
            yield f"{indent}◂ {one.name}: that flow's query, run as part of this one"
            for inner in one.inputs:
                yield from _input_text(inner, indent + "  ")
            yield from _steps_text((*one.after, *one.before), indent + "  ")
        case StandingInput():
            yield f"{indent}◂ {one.name}: {'lake table' if one.table is None else 'table'}, as it stands"
        case TableInput():
            key = f"; key {', '.join(one.shape.key)}" if one.shape is not None and one.shape.key else ""
            yield f"{indent}◂ {one.name}: table, {one.spec.source.label}{key}"
