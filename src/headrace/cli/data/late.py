"""List and count rows that arrived after their window closed."""

from __future__ import annotations

import json as jsonlib
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headrace.cli.data._letters_output import moment, print_counts, timestamp
from headrace.cli.terminal.output import printer
from headrace.cli.terminal.project_args import Json, Names, ProjectTarget, project_options
from headrace.core.errors import unknown_flow
from headrace.core.lazy import lazy_modules
from headrace.engine.letters.task_rows import locked_files

if TYPE_CHECKING:
    from headrace.core.files.state_files import StatePath
    from headrace.engine.letters import dead_letter_index
else:
    dead_letter_index = lazy_modules("headrace.engine.letters.dead_letter_index")

app = typer.Typer(help=__doc__, no_args_is_help=True, rich_markup_mode=None)

_Stream = Annotated[str | None, typer.Option("--stream", metavar="S", help="Only those of this stream.")]
_Since = Annotated[
    str | None, typer.Option("--since", metavar="T", help="Only those since a time, or of the last e.g. 2h.")
]
_TIMES = ("event_time", "watermark", "met_at")
_PLAIN = ("id", "flow", "stream", "event_time", "watermark", "met_at", "row")


@app.command("list")
@project_options(Names)
def list_(
    target: ProjectTarget,
    stream: _Stream = None,
    since: _Since = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="At most this many; 0 for all.")] = 50,
    json: Json = False,
) -> None:
    """List late rows, the newest first, with the watermark that had passed them."""
    folder, flow = _late(target)
    with locked_files(folder, flow):
        store = dead_letter_index.late_row_store(folder, flow)
        chosen = dead_letter_index.DeadLetterFilter(stream=stream, since=moment(since)).of(store.index)
        items = [_document(row) for row in store.newest(chosen, limit or None)]
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
@project_options(Names)
def count_(
    target: ProjectTarget,
    by: Annotated[Literal["stream", "flow", "day"], typer.Option("--by", help="What to count by.")] = "flow",
    stream: _Stream = None,
    since: _Since = None,
    json: Json = False,
) -> None:
    """Count late rows."""
    store = dead_letter_index.late_row_store(*_late(target))
    print_counts(dead_letter_index.DeadLetterFilter(stream=stream, since=moment(since)).of(store.index), by, json)


def _late(target: ProjectTarget) -> tuple[StatePath, str | None]:
    """Return the folder of late rows and the named flow."""
    flow, (loaded, state) = target.flow(), target.open()
    folder = state.late
    if flow is not None and flow not in loaded.spec.flows and not (folder / flow).is_dir():
        raise unknown_flow(flow, loaded.spec.flows)
    return folder, flow


def _document(row: dict[str, Any]) -> dict[str, Any]:
    times = {name: None if row[name] is None else timestamp(row[name]) for name in _TIMES}
    parsed = {name: None if row[name] is None else jsonlib.loads(row[name]) for name in ("position", "row")}
    return {**row, **times, **parsed}
