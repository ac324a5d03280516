"""The shape of a flow: everything its checkpoint depends on, as JSON stored with a generation and compared later.

`inputs`, `operators`, `types` and the like are fixed by Spark's checkpoint; `loose` may change at any time and is
stored to report what changed.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from sqlglot import exp

from headrace.core.capabilities import ServesEndpoint
from headrace.core.durations import format_duration
from headrace.core.processor import StatefulStep
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
from headrace.sql.operators import Inlined, Leaf, Operators, TraceInput, all_conditions, operators
from headrace.sql.query import Query, cte_of, parse
from headrace.views.algebra.fingerprint import view_text
from headrace.views.algebra.operators import scans

# shapes of different versions cannot be compared
VERSION = 1


def shape_of(flow: FlowPlan, settings: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The shape of a flow with the user's Spark settings. Pure: needs no Spark and no service."""
    if flow.tables() or flow.is_report:
        return _view_shape(flow, settings or {})
    query = parse(flow.sql)
    trace_inputs = _trace_inputs(flow.inputs)
    traced = operators(query, trace_inputs)
    stateful = bool(flow.state)
    return {
        "version": VERSION,
        "inputs": list(_inputs(query, {input_.name.lower(): input_ for input_ in flow.inputs}, stateful)),
        "operators": [
            *_stateful_steps(step for step in flow.steps() if step not in flow.after),
            *traced.found,
            *_stateful_steps(flow.after),
        ],
        "types": _types(flow, traced),
        "output": flow.spec.output,
        "settings": semantic_settings(settings or {}),
        "sinks": [_sink(step, flow.output_columns) for step in flow.sinks],
        "loose": _loose(flow, query),
    }


def _view_shape(flow: FlowPlan, settings: Mapping[str, str]) -> dict[str, Any]:
    """The shape of a view: it resumes if its state and tables are the same, however its SQL is written."""
    tables = sorted(flow.tables(), key=lambda table: table.name)
    return {
        "version": VERSION,
        "view": True,
        "inputs": [{"name": table.name, **_source_identity(table), "event_time": None} for table in tables],
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
    """The types of the columns a view reads."""
    shapes = {table.name: table.shape.columns for table in flow.tables() if table.shape is not None}
    view_scans = scans(flow.view.root) if flow.view is not None else ()
    used = sorted({(scan.table, column) for scan in view_scans for _, column in scan.fields})
    return {f"{table}.{column}": str(shapes[table].field(column).type) for table, column in used}


def _sink(step: SinkStep, columns: Iterable[str]) -> dict[str, Any]:
    shape: dict[str, Any] = {"id": step.id, "label": step.sink.label}
    if isinstance(step.sink, ServesEndpoint):
        shape["fills"] = {**step.sink.layout, "columns": list(columns)}
    return shape


def _stateful_steps(steps: Iterable[ProcessorStep]) -> list[dict[str, Any]]:
    """The stateful steps, with a digest of the options their state depends on."""
    return [
        {
            "operator": step.processor.kind(),
            "options": _digest(json.dumps(step.processor.state_options, sort_keys=True)),
        }
        for step in steps
        if isinstance(step.processor, StatefulStep) and step.processor.state_name
    ]


def _options(step: ProcessorStep) -> str:
    return step.processor.model_dump_json(exclude_defaults=True, exclude={"type"})


def _digest(text: str) -> str:
    """A digest: options may contain secrets, and a shape is stored in a file."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _trace_inputs(inputs: tuple[Input, ...]) -> dict[str, TraceInput]:
    return {input_.name.lower(): _trace_input(input_) for input_ in inputs}


def _trace_input(input_: Input) -> TraceInput:
    match input_:
        case FlowInput():
            return Inlined(parse(input_.sql), _trace_inputs(input_.inputs))
        case StreamInput():
            schema = input_.schema
            return Leaf(input_.name, None if schema is None else (*schema.names, *input_.metadata))
        case LakeInput() | TableInput() | StandingInput():
            return Leaf(input_.name)


def _inputs(query: Query, inputs: Mapping[str, Input], stateful: bool) -> Iterator[dict[str, Any]]:
    """All inputs in the order of the SQL text: Spark stores positions in that order, a CTE before its uses."""
    for table in query.inputs:
        input_ = inputs[table.name.lower()]
        if isinstance(input_, FlowInput):
            yield from _inputs(parse(input_.sql), {inner.name.lower(): inner for inner in input_.inputs}, stateful)
            continue
        yield {
            "name": input_.name,
            **_source_identity(input_),
            "event_time": _event_time_text(input_.event_time) if stateful else None,
        }
        if isinstance(input_, StreamInput) and input_.spec.backfill is not None:
            yield {"name": input_.name, "kind": "history", "reads": input_.spec.backfill.reads, "event_time": None}
        if stateful and input_.event_time is not None and input_.event_time.idle is not None:
            # the engine reads heartbeats as a separate input next to the stream
            yield {"name": input_.name, "kind": "heartbeats", "reads": "while idle", "event_time": None}
    uses = Counter(id(cte) for table in query.tree.find_all(exp.Table) if (cte := cte_of(table)) is not None)
    for cte in query.tree.find_all(exp.CTE, bfs=False):
        if uses[id(cte)] > 1 and query.reads_input(cte.this):
            yield {"name": cte.alias.lower(), "kind": "cte", "reads": f"{uses[id(cte)]} times", "event_time": None}


def _event_time_text(event_time: EventTime | None) -> str | None:
    if event_time is None:
        return None
    return event_time.column if event_time.unit == "ms" else f"{event_time.column} in {event_time.unit}"


def _source_identity(input_: StreamInput | LakeInput | TableInput | StandingInput) -> dict[str, str]:
    if isinstance(input_, LakeInput | StandingInput):
        return {"kind": "flow", "reads": f"its lake table {input_.path}"}
    if isinstance(input_, TableInput):
        return {"kind": input_.spec.source.kind(), "reads": f"{input_.name}, {input_.spec.source.label}"}
    return {"kind": input_.spec.source.kind(), "reads": input_.spec.source.reads}


def _types(flow: FlowPlan, traced: Operators) -> dict[str, str]:
    """The types of the columns that the state depends on, where they are known."""
    streams = {stream.name: stream for stream in flow.streams()}
    types = {}
    for name, column, *fields in sorted(traced.columns):
        kind = _type(streams[name], column, fields) if name in streams else None
        if kind is not None:
            types[".".join([name, column, *fields])] = kind
    return types


def _type(stream: StreamInput, column: str, fields: list[str]) -> str | None:
    if stream.event_time is not None and stream.event_time.column.lower() == column:
        return "timestamp"
    metadata = stream.spec.source.metadata
    schema = stream.schema if column not in metadata else from_ddl(f"`{column}` {metadata[column]}")
    kind = _field(schema, column) if schema is not None else None
    for name in fields:
        kind = _field(kind, name) if kind is not None and pa.types.is_struct(kind) else None
    return None if kind is None else to_ddl(pa.schema([("c", kind)])).partition(" ")[2]


def _field(parent: Any, name: str) -> pa.DataType | None:
    """The type of a column of a schema or of a field of a struct. Case-insensitive."""
    return next((field.type for field in parent if field.name.lower() == name), None)


def _loose(flow: FlowPlan, query: Query) -> dict[str, Any]:
    """What may change between starts."""
    return {
        "sql": canonical(query.tree),
        "conditions": all_conditions(query),
        "columns": {
            item.output_name.lower() or canonical(item): canonical(item.unalias()) for item in query.tree.selects
        },
        "parts": {
            item.name: canonical(parse(item.sql).tree) for item in flow.all_inputs() if isinstance(item, FlowInput)
        },
        "steps": [f"{step.id} {step.processor.kind()} {_digest(_options(step))}" for step in flow.steps()],
        "functions": {name: digest for name, digest in flow.functions.items() if digest},
        "mode": flow.spec.mode,
        "trigger": format_duration(flow.trigger),
        "max_records": flow.max_records,
        "watermarks": {
            item.name: format_duration(item.event_time.watermark)
            for item in flow.all_inputs()
            if not isinstance(item, FlowInput) and item.event_time is not None
        },
    }
