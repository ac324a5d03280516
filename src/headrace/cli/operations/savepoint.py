"""`headrace savepoint`: copies of a stopped flow's place and state, to go back to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import typer

from headrace.cli.terminal.confirm import confirm
from headrace.cli.terminal.output import printer, usage_error
from headrace.cli.terminal.positions_output import DryRun, Yes, aligned, known_flow, known_flows, one_flow, opened
from headrace.cli.terminal.project_args import Json, Names, Overrides, Profile, ProjectOption

app = typer.Typer(help="Copies of a stopped flow's place and state.", no_args_is_help=True, rich_markup_mode=None)


@app.command()
def create(
    names: Names = None,
    project: ProjectOption = None,
    profile: Profile = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Make a savepoint of a flow that is not running: FLOW, then a NAME (made from the time otherwise)."""
    from headrace.engine.positions.rewind import while_stopped
    from headrace.engine.positions.savepoints import Savepoints
    from headrace.plan.planner import make_plan

    loaded, state, named = opened(names, project, profile, overrides)
    name = named[1] if len(named) == 2 else None
    asked = one_flow(named[:1] if len(named) == 2 else named, "savepoint create")
    flow = make_plan(loaded, (asked,)).flow(asked)
    with while_stopped(state, flow.name):
        made = Savepoints(state, flow.name).create(flow, loaded.context, name)
    if json:
        printer.document(asdict(made.info))
    else:
        printer.data(made.info.name)
        printer.note(f"go back to it with: headrace rewind {flow.name} --to {made.info.name}")


@app.command("list")
def list_(
    names: Names = None,
    project: ProjectOption = None,
    profile: Profile = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """List the savepoints of all flows, or of those named."""
    from headrace.engine.positions.savepoints import Savepoints

    loaded, state, flows = opened(names, project, profile, overrides)
    chosen = known_flows(loaded, flows)
    notes = [savepoint.info for flow in chosen for savepoint in Savepoints(state, flow).all()]
    if json:
        printer.document([asdict(note) for note in notes])
        return
    rows = [["flow", "name", "created", "batch", "generation"]]
    rows += [[note.flow, note.name, note.created_at, str(note.batch), note.generation] for note in notes]
    for line in aligned(rows) if notes else ["no savepoints"]:
        printer.data(line)


@app.command()
def delete(
    names: Names = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    project: ProjectOption = None,
    profile: Profile = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Delete a savepoint: FLOW, then NAME."""
    from headrace.engine.positions.savepoints import Savepoints

    loaded, state, named = opened(names, project, profile, overrides)
    flow, name = _two(named)
    known_flow(loaded, flow)
    savepoints = Savepoints(state, flow)
    savepoints.require(name)
    if not dry_run:
        confirm(f"Delete savepoint '{name}' of flow '{flow}'?", yes)
        savepoints.delete(name)
    if json:
        printer.document({"flow": flow, "name": name, "done": not dry_run})
    else:
        printer.note(f"savepoint '{name}' of flow '{flow}' {'would be' if dry_run else 'is'} deleted")


def _two(named: Sequence[str]) -> tuple[str, str]:
    if len(named) != 2:
        raise usage_error(
            "savepoint delete takes a flow and the name of a savepoint", "headrace savepoint delete FLOW NAME"
        )
    return named[0], named[1]
