"""The plan as text, as JSON and as a graph."""

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
    """The plan as JSON. `changes`: by flow, the change since its last start."""
    by_flow = changes or {}
    return {
        "project": plan.project,
        "flows": [{**_flow_json(flow), "change": by_flow.get(flow.name)} for flow in plan.flows],
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
        "inputs": [_input_json(input_) for input_ in flow.inputs],
        "after": _steps_json(flow.after),
        "columns": list(flow.output_columns),
        "sinks": [
            {"id": s.id, "type": s.sink.kind(), "label": s.sink.label, "guarantee": s.sink.guarantee}
            for s in flow.sinks
        ],
    }


def _input_json(input_: Input) -> dict[str, Any]:
    match input_:
        case StreamInput():
            return {
                "name": input_.name,
                "kind": "stream",
                "source": {"type": input_.spec.source.kind(), "label": input_.spec.source.label},
                "format": input_.spec.format.kind() if input_.spec.format else None,
                "columns": None if input_.columns is None else list(input_.columns),
                "filters": [str(f) for f in input_.filters],
                "event_time": input_.event_time.column if input_.event_time else None,
                "watermark": format_duration(input_.event_time.watermark) if input_.event_time else None,
                "on_error": input_.spec.on_error,
                "backfill": _backfill_json(input_),
                "before": _steps_json(input_.before),
            }
        case LakeInput():
            return {"name": input_.name, "kind": "flow", "through": "lake", "before": _steps_json(input_.before)}
        case FlowInput():
            return {
                "name": input_.name,
                "kind": "flow",
                "through": "inlined",
                "inputs": [_input_json(i) for i in input_.inputs],
                "before": _steps_json((*input_.after, *input_.before)),
            }
        case StandingInput():
            return {"name": input_.name, "kind": "flow" if input_.table is None else "table", "through": "as it stands"}
        case TableInput():
            return {
                "name": input_.name,
                "kind": "table",
                "source": {"type": input_.spec.source.kind(), "label": input_.spec.source.label},
                "columns": None if input_.shape is None else input_.shape.columns.names,
                "key": None if input_.shape is None else list(input_.shape.key),
            }


def _backfill_json(stream: StreamInput) -> dict[str, Any] | None:
    backfill = stream.spec.backfill
    return None if backfill is None else {"label": backfill.label, "seam": backfill.seam}


def _steps_json(steps: Sequence[ProcessorStep]) -> list[dict[str, Any]]:
    return [{"id": step.id, "type": step.processor.kind(), "label": step.processor.label} for step in steps]


def to_dot(plan: Plan) -> str:
    """The plan as a Graphviz graph."""
    lines = [f"digraph {plan.project} {{", "  rankdir=LR;", '  node [shape=box, fontname="sans-serif"];']
    for flow in plan.flows:
        lines.append(f'  "flow {flow.name}" [label="{flow.name}\\n{flow.spec.mode}, {flow.guarantee}", style=rounded];')
        for input_ in flow.inputs:
            lines.append(f'  "{_node(input_)}" -> "flow {flow.name}"{_edge(input_)};')
        for step in flow.sinks:
            lines.append(f'  "flow {flow.name}" -> "{_escape(step.sink.label)}";')
    return "\n".join([*dict.fromkeys(lines), "}"])


def _node(input_: Input) -> str:
    match input_:
        case StreamInput():
            return f"stream {input_.name}"
        case TableInput():
            return f"table {input_.name}"
        case _:
            return f"flow {input_.name}"


def _edge(input_: Input) -> str:
    if isinstance(input_, StreamInput) and input_.columns is not None:
        return f' [label="{_escape(", ".join(input_.columns))}"]'
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
        for input_ in flow.inputs:
            yield from _input_text(input_, "  ")
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
    """The verdict on a change as text."""
    verdict = ChangeVerdict(change["verdict"], tuple(change["reasons"]))
    parallel = f", built in parallel with {change['beside']}" if change.get("beside") else ""
    return f"generation {change['generation']}{parallel}: {verdict.words}"


def _steps_text(steps: Sequence[ProcessorStep], indent: str) -> Iterator[str]:
    for step in steps:
        yield f"{indent}▹ {step.processor.label}"


def _input_text(input_: Input, indent: str) -> Iterator[str]:
    match input_:
        case StreamInput():
            form = f", {input_.spec.format.kind()}" if input_.spec.format else ""
            columns = "all columns" if input_.columns is None else f"columns {', '.join(input_.columns) or 'none'}"
            yield f"{indent}◂ {input_.name}: {input_.spec.source.label}{form}; {columns}"
            if input_.spec.backfill:
                yield f"{indent}  first the history in {input_.spec.backfill.label}, up to {input_.spec.backfill.seam}"
            if input_.filters:
                yield f"{indent}  only rows where {' and '.join(str(f) for f in input_.filters)}"
            if input_.event_time:
                wait = format_duration(input_.event_time.watermark)
                yield f"{indent}  event time {input_.event_time.column}, waits {wait} for late records"
            yield from _steps_text(input_.before, indent + "  ")
        case LakeInput():
            yield f"{indent}◂ {input_.name}: the lake table of that flow"
            yield from _steps_text(input_.before, indent + "  ")
        case FlowInput():
            yield f"{indent}◂ {input_.name}: that flow's query, run as part of this one"
            for inner in input_.inputs:
                yield from _input_text(inner, indent + "  ")
            yield from _steps_text((*input_.after, *input_.before), indent + "  ")
        case StandingInput():
            yield f"{indent}◂ {input_.name}: {'lake table' if input_.table is None else 'table'}, current rows"
        case TableInput():
            key = f"; key {', '.join(input_.shape.key)}" if input_.shape is not None and input_.shape.key else ""
            yield f"{indent}◂ {input_.name}: table, {input_.spec.source.label}{key}"
