"""`headrace late`: rows that came after their windows had been closed."""

from __future__ import annotations

import json as jsonlib
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headrace.cli.data._letters_output import moment, print_counts, timestamp
from headrace.cli.terminal.output import printer, usage_error
from headrace.cli.terminal.project_args import Json, Names, Overrides, Profile, ProjectOption, load_project, split
from headrace.core.errors import unknown_flow

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.core.files.state_files import StatePath

app = typer.Typer(help="Rows that came too late for their windows.", no_args_is_help=True, rich_markup_mode=None)

_Stream = Annotated[str | None, typer.Option("--stream", metavar="S", help="Only those of this stream.")]
_Since = Annotated[
    str | None, typer.Option("--since", metavar="T", help="Only those met since a time, or in the last e.g. 2h.")
]
_TIMES = ("event_time", "watermark", "met_at")
_PLAIN = ("id", "flow", "stream", "event_time", "watermark", "met_at", "row")


@app.command("list")
def list_(
    names: Names = None,
    stream: _Stream = None,
    since: _Since = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="At most this many; 0 for all.")] = 50,
    project: ProjectOption = None,
    profile: Profile = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """List late rows, the newest first, with the watermark they were too late for."""
    from headrace.engine.letters.dead_letter_index import DeadLetterFilter, late_row_store
    from headrace.engine.letters.task_rows import locked_files

    folder, flow = _late(names, project, profile, overrides)
    with locked_files(folder, flow):
        shelf = late_row_store(folder, flow)
        chosen = DeadLetterFilter(stream=stream, since=moment(since)).of(shelf.index)
        items = [_document(row) for row in shelf.newest(chosen, limit or None)]
    if json:
        printer.document({"items": items, "total": chosen.num_rows, "next": None})
        return
    for item in items:
        shown = {**item, "row": jsonlib.dumps(item["row"], ensure_ascii=False)}
        printer.data("\t".join(str(shown[name]) for name in _PLAIN))
    if len(items) < chosen.num_rows:
        printer.note(f"the newest {len(items):,} of {chosen.num_rows:,}; --limit 0 shows all")
    elif not items:
        printer.note("no late rows")


@app.command("count")
def count_(
    names: Names = None,
    by: Annotated[Literal["stream", "flow", "day"], typer.Option("--by", help="What to count by.")] = "flow",
    stream: _Stream = None,
    since: _Since = None,
    project: ProjectOption = None,
    profile: Profile = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Count late rows."""
    from headrace.engine.letters.dead_letter_index import DeadLetterFilter, late_row_store

    shelf = late_row_store(*_late(names, project, profile, overrides))
    print_counts(DeadLetterFilter(stream=stream, since=moment(since)).of(shelf.index), by, json)


def _late(
    names: list[str] | None, option: Path | None, profile: str | None, overrides: list[str] | None
) -> tuple[StatePath, str | None]:
    """The folder of late rows and the flow that was named."""
    from headrace.engine.state.state import StateDir

    path, flows = split(names, option)
    if len(flows) > 1:
        raise usage_error(f"one flow at most, not {len(flows)}", "leave out the others, or all of them")
    loaded = load_project(path, profile, overrides)
    folder, flow = StateDir.of(loaded.context).late, flows[0] if flows else None
    if flow is not None and flow not in loaded.spec.flows and not (folder / flow).is_dir():
        raise unknown_flow(flow, loaded.spec.flows)
    return folder, flow


def _document(row: dict[str, Any]) -> dict[str, Any]:
    times = {name: None if row[name] is None else timestamp(row[name]) for name in _TIMES}
    parsed = {name: None if row[name] is None else jsonlib.loads(row[name]) for name in ("position", "row")}
    return {**row, **times, **parsed}
