"""What a flow is, as far as its checkpoint depends on it: JSON that is kept with a generation and compared later.

`inputs`, `operators`, `types` and the like are what Spark holds on to; `loose` is what may change at any time, kept to
tell people what did.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from sqlglot import exp

from headrace.core.durations import format_duration
from headrace.core.schema import from_ddl, to_ddl
from headrace.plan.model import (
    FlowInput,
    FlowPlan,
    Input,
    LakeInput,
    ProcessorStep,
    SinkStep,
    StandingInput,
    StreamInput,
    TableInput,
)
from headrace.plan.settings import semantic_settings
from headrace.project.model import EventTime
from headrace.sql.canonical import canonical
from headrace.sql.operators import Given, Inlined, Leaf, Operators, all_conditions, operators
from headrace.sql.query import Query, cte_of, parse
from headrace.views.algebra.fingerprint import view_text
from headrace.views.algebra.operators import scans

# a shape of another version cannot be compared
VERSION = 1


def shape_of(flow: FlowPlan, settings: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The shape of a flow, run with these Spark settings of the user. Pure: needs no Spark and no service."""
    if flow.tables() or flow.is_report:
        return _view_shape(flow, settings or {})
    query = parse(flow.sql)
    given = _trace_inputs(flow.inputs)
    kept = operators(query, given)
    stateful = bool(flow.state)
    return {
        "version": VERSION,
        "inputs": list(_inputs(query, {one.name.lower(): one for one in flow.inputs}, stateful)),
        "operators": [
            *_stateful_steps(step for step in flow.steps() if step not in flow.after),
            *kept.found,
            *_stateful_steps(flow.after),
        ],
        "types": _types(flow, kept),
        "output": flow.spec.output,
        "settings": semantic_settings(settings or {}),
        "sinks": [_sink(step, flow.output_columns) for step in flow.sinks],
        "loose": _loose(flow, query),
    }


def _view_shape(flow: FlowPlan, settings: Mapping[str, str]) -> dict[str, Any]:
    """The shape of a view: it goes on as long as it keeps the same of the same tables, however its SQL is written."""
    tables = sorted(flow.tables(), key=lambda one: one.name)
    return {
        "version": VERSION,
        "view": True,
        "inputs": [{"name": one.name, **_source_identity(one), "event_time": None} for one in tables],
        "operators": [{"operator": "query", "keeps": _digest("None" if flow.view is None else view_text(flow.view))}],
        "types": _view_types(flow),
        "output": flow.spec.output,
        "settings": semantic_settings(settings),
        "sinks": [_sink(step, flow.output_columns) for step in flow.sinks],
        "loose": {
            "sql": "",
            "conditions": [],
            "columns": {},
            "parts": {},
            "steps": [],
            "functions": {},
            "mode": flow.spec.mode,
            "trigger": format_duration(flow.trigger),
            "max_records": flow.max_records,
            "watermarks": {},
        },
    }


def _view_types(flow: FlowPlan) -> dict[str, str]:
    """The types of the columns that a view reads."""
    shapes = {one.name: one.shape.columns for one in flow.tables() if one.shape is not None}
    read = scans(flow.view.root) if flow.view is not None else ()
    used = sorted({(scan.table, column) for scan in read for _, column in scan.fields})
    return {f"{table}.{column}": str(shapes[table].field(column).type) for table, column in used}


def _sink(step: SinkStep, columns: Iterable[str]) -> dict[str, Any]:
    said: dict[str, Any] = {"id": step.id, "label": step.sink.label}
    if step.sink.fills is not None:
        said["fills"] = {**step.sink.fills, "columns": list(columns)}
    return said


def _stateful_steps(steps: Iterable[ProcessorStep]) -> list[dict[str, Any]]:
    """The steps that keep something, with what they were told of which depends what they keep."""
    return [
        {"operator": step.processor.kind(), "options": _digest(json.dumps(step.processor.kept, sort_keys=True))}
        for step in steps
        if step.processor.remembers
    ]


def _options(step: ProcessorStep) -> str:
    return step.processor.model_dump_json(exclude_defaults=True, exclude={"type"})


def _digest(text: str) -> str:
    """Options may hold secrets, and a shape is kept in a file."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _trace_inputs(inputs: tuple[Input, ...]) -> dict[str, Given]:
    return {one.name.lower(): _trace_input(one) for one in inputs}


def _trace_input(one: Input) -> Given:
    match one:
        case FlowInput():
            return Inlined(parse(one.sql), _trace_inputs(one.inputs))
        case StreamInput():
            known = one.schema
            return Leaf(one.name, None if known is None else (*known.names, *one.metadata))
        case LakeInput() | TableInput() | StandingInput():
            return Leaf(one.name)


def _inputs(query: Query, inputs: Mapping[str, Input], stateful: bool) -> Iterator[dict[str, Any]]:
    """All that is read, in the order of the text: Spark keeps positions by that order, a CTE before what uses it."""
    for table in query.inputs:
        one = inputs[table.name.lower()]
        if isinstance(one, FlowInput):
            yield from _inputs(parse(one.sql), {inner.name.lower(): inner for inner in one.inputs}, stateful)
            continue
        yield {
            "name": one.name,
            **_source_identity(one),
            "event_time": _event_time_text(one.event_time) if stateful else None,
        }
        if isinstance(one, StreamInput) and one.spec.backfill is not None:
            yield {"name": one.name, "kind": "history", "reads": one.spec.backfill.reads, "event_time": None}
        if stateful and one.event_time is not None and one.event_time.idle is not None:
            # the engine reads heartbeats beside the stream, as an input of their own
            yield {"name": one.name, "kind": "heartbeats", "reads": "while idle", "event_time": None}
    uses = Counter(id(cte) for table in query.tree.find_all(exp.Table) if (cte := cte_of(table)) is not None)
    for cte in query.tree.find_all(exp.CTE, bfs=False):
        if uses[id(cte)] > 1 and query.reads_input(cte.this):
            yield {"name": cte.alias.lower(), "kind": "cte", "reads": f"{uses[id(cte)]} times", "event_time": None}


def _event_time_text(event_time: EventTime | None) -> str | None:
    if event_time is None:
        return None
    return event_time.column if event_time.unit == "ms" else f"{event_time.column} in {event_time.unit}"


def _source_identity(one: StreamInput | LakeInput | TableInput | StandingInput) -> dict[str, str]:
    if isinstance(one, LakeInput | StandingInput):
        return {"kind": "flow", "reads": f"its lake table {one.path}"}
    if isinstance(one, TableInput):
        return {"kind": one.spec.source.kind(), "reads": f"{one.name}, {one.spec.source.label}"}
    return {"kind": one.spec.source.kind(), "reads": one.spec.source.reads}


def _types(flow: FlowPlan, kept: Operators) -> dict[str, str]:
    """The types of the columns that have a part in what is kept, where they are known."""
    streams = {stream.name: stream for stream in flow.streams()}
    found = {}
    for name, column, *fields in sorted(kept.columns):
        kind = _type(streams[name], column, fields) if name in streams else None
        if kind is not None:
            found[".".join([name, column, *fields])] = kind
    return found


def _type(stream: StreamInput, column: str, fields: list[str]) -> str | None:
    if stream.event_time is not None and stream.event_time.column.lower() == column:
        return "timestamp"
    metadata = stream.spec.source.metadata
    known = stream.schema if column not in metadata else from_ddl(f"`{column}` {metadata[column]}")
    kind = _field(known, column) if known is not None else None
    for name in fields:
        kind = _field(kind, name) if kind is not None and pa.types.is_struct(kind) else None
    return None if kind is None else to_ddl(pa.schema([("c", kind)])).partition(" ")[2]


def _field(parent: Any, name: str) -> pa.DataType | None:
    """The type of a column of a schema or of a field of a struct, whatever the case of its letters."""
    return next((field.type for field in parent if field.name.lower() == name), None)


def _loose(flow: FlowPlan, query: Query) -> dict[str, Any]:
    """What may change from one start to the next."""
    return {
        "sql": canonical(query.tree),
        "conditions": all_conditions(query),
        "columns": {one.output_name.lower() or canonical(one): canonical(one.unalias()) for one in query.tree.selects},
        "parts": {one.name: canonical(parse(one.sql).tree) for one in flow.all_inputs() if isinstance(one, FlowInput)},
        "steps": [f"{step.id} {step.processor.kind()} {_digest(_options(step))}" for step in flow.steps()],
        "functions": {name: digest for name, digest in flow.functions.items() if digest},
        "mode": flow.spec.mode,
        "trigger": format_duration(flow.trigger),
        "max_records": flow.max_records,
        "watermarks": {
            one.name: format_duration(one.event_time.watermark)
            for one in flow.all_inputs()
            if not isinstance(one, FlowInput) and one.event_time is not None
        },
    }
