"""Show the state, rates and lag of running flows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.operations._serving_status import serving_lines, serving_of
from headrace.cli.operations._tables_status import table_lines, tables_of
from headrace.cli.terminal.engines import flows_of, seconds_of
from headrace.cli.terminal.output import printer
from headrace.cli.terminal.project_args import Json, Names, ProjectTarget, project_options
from headrace.engine.state.state import StateDir
from headrace.engine.state.status_file import read_status

if TYPE_CHECKING:
    from rich.table import Table

    from headrace.engine.state.status_file import StatusReading

_COLUMNS = ("flow", "state", "rows in", "rows/s", "lag", "watermark", "load", "late", "dead", "restarts")
_STYLES = {"running": "green", "degraded": "yellow", "failed": "bold red", "starting": "cyan", "waiting": "cyan"}
_UNKNOWN = "–"
_CLEAR = "\x1b[H\x1b[2J"


@project_options(Names)
def status(
    target: ProjectTarget,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh until Ctrl-C.")] = False,
    every: Annotated[str, typer.Option("--every", metavar="TIME", help="The interval of --watch.")] = "2s",
    json: Json = False,
) -> None:
    """Show the flows of a running engine (state, rate, lag, watermark, dead letters), the captured tables, and the
    endpoints that this machine serves.

    Reads the status files that engine, capture and serve node write every second; needs no Spark. With --watch --json
    it prints one document per line.
    """
    place, flows = target.outline(), target.flows
    state = StateDir.of(place.context)
    pause = seconds_of("--every", every)
    while True:
        reading, other_parts = (
            read_status(state),
            {"tables": tables_of(place.context), "serve": serving_of(place.store)},
        )
        if not watch:
            _print(reading, other_parts, flows, json)
            return
        if json:
            printer.line(_document(reading, other_parts, flows))
        else:
            if printer.on_terminal():
                print(_CLEAR, end="")
            _print(reading, other_parts, flows, json)
        time.sleep(pause)


def _document(reading: StatusReading, other_parts: dict[str, Any], flows: Sequence[str]) -> dict[str, Any]:
    document = reading.to_json()
    return {**document, "flow_list": flows_of(document, flows), **other_parts}


def _print(reading: StatusReading, other_parts: dict[str, Any], flows: Sequence[str], json: bool) -> None:
    document = printer.clean(_document(reading, other_parts, flows))
    if json:
        printer.document(document)
        return
    printer.note(_headline(reading))
    rows = [_cells(flow, live=reading.freshness == "live") for flow in document["flow_list"]]
    if printer.on_terminal():
        printer.render(_table(document["flow_list"], rows))
    else:
        for row in [list(_COLUMNS), *rows] if rows else []:
            printer.data("\t".join(row))
    for flow in document["flow_list"]:
        for line in _remarks(flow):
            printer.data(f"{flow['name']}: {line}")
    for line in [] if flows else [*table_lines(document["tables"]), *serving_lines(document["serve"])]:
        printer.data(line)
    for note in document["notes"]:
        printer.note(f"note: {note['about']}: {note['text']}")


def _headline(reading: StatusReading) -> str:
    document = reading.document
    if document is None:
        return (
            "no engine runs, and none has run before" if reading.freshness == "no-engine" else "an engine is starting"
        )
    age = f"as of {document['as_of']} ({_time(reading.age_s)} ago)"
    if reading.freshness == "no-engine":
        return f"no engine runs; last known status {age}"
    if reading.freshness == "stale":
        return f"stale: the engine does not report (paused, overloaded, or still starting); last known status {age}"
    pid, address = document["engine"]["pid"], document["engine"]["http"]
    ready = "ready" if document["ready"] else "not ready"
    return f"engine {pid} of {document['project']}, {ready}, {address or 'no HTTP'}, {age}"


def _cells(flow: dict[str, Any], *, live: bool) -> list[str]:
    return [
        flow["name"],
        flow["state"] if live or flow["state"] in ("stopped", "failed") else f"{flow['state']}?",
        _number(flow["rows_in"]),
        _number(flow["rows_per_s"]),
        _lag(flow["lag"]),
        _time(flow["watermark_gap_s"], " behind"),
        _UNKNOWN if flow["load"] is None else f"{flow['load']:.2f}",
        _number(flow["late_rows"]),
        _number(flow["dead_letters"]),
        _number(flow["restarts"]),
    ]


def _remarks(flow: dict[str, Any]) -> list[str]:
    """Return the details that the columns do not show."""
    remarks = []
    stop = flow.get("stop")
    if stop is not None:
        progress = "stopped" if flow["state"] == "stopped" else "stops after its batch"
        remarks.append(
            f"{progress}, requested by {stop['by']} at {stop['at']}; to continue: headrace start {flow['name']}"
        )
    if flow["reason"] is not None:
        remarks.append(f"{flow['reason']['text']} [{flow['reason']['code']}], since {flow['reason']['since']}")
    elif flow["state"] == "failed" and flow["last_error"] is not None:
        remarks.append(f"{flow['last_error']['message']} [{flow['last_error']['code']}]")
    if flow["note"] is not None:
        remarks.append(f"{flow['note']['text']} [{flow['note']['code']}], since {flow['note']['since']}")
    candidate = flow.get("candidate")  # older engines do not report it
    if candidate is not None:
        behind = f", {_lag(candidate['lag'])} behind" if candidate["lag"] is not None else ""
        remarks.append(f"candidate {candidate['generation'] or _UNKNOWN}: {candidate['text']}{behind}")
    if flow["held_back_by"] is not None:
        remarks.append(f"watermark held back by {flow['held_back_by']}")
    return remarks


def _table(flows: Sequence[dict[str, Any]], rows: Sequence[Sequence[str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column in ("flow", "state") else "right")
    for flow, row in zip(flows, rows, strict=True):
        cells = [Text(cell) for cell in row]
        cells[1].stylize(_STYLES.get(flow["state"], ""))
        table.add_row(*cells)
    return table


def _number(value: float | None) -> str:
    if value is None:
        return _UNKNOWN
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"


def _lag(lag: dict[str, Any] | None) -> str:
    if lag is None:
        return _UNKNOWN
    records = _UNKNOWN if lag["records"] is None else f"{lag['records']:,}"
    trend = {"growing": " ↑", "shrinking": " ↓", "steady": " →"}.get(lag["trend"] or "", "")
    return f"{_time(lag['s'])} / {records}{trend}"


def _time(seconds: float | None, suffix: str = "") -> str:
    if seconds is None:
        return _UNKNOWN
    if seconds < 120:
        return f"{seconds:.1f}s{suffix}"
    return (f"{seconds / 60:.0f}min" if seconds < 7200 else f"{seconds / 3600:.1f}h") + suffix
