"""`headrace rewind`: let a flow go back, after saying what that does to each of its sinks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.operations.offsets import offsets_in
from headrace.cli.terminal.positions_output import DryRun, Yes, carry_out, one_flow, opened, rewinder
from headrace.cli.terminal.project_args import Json, Names, Overrides, Profile, ProjectOption
from headrace.core.errors import Exit, ProjectError, did_you_mean

if TYPE_CHECKING:
    from headrace.core.positions import Target
    from headrace.engine.positions.rewind import Rewinder
    from headrace.engine.positions.rewind_plan import CheckpointCopy


def rewind(
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="TARGET",
            help="earliest, latest, a time, a file with offsets (.json, .csv), a savepoint or an earlier generation.",
        ),
    ],
    names: Names = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Take back the rows written since, from sinks that can.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    project: ProjectOption = None,
    profile: Profile = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Let a stopped flow go back to an earlier position, as a new generation; the old one is kept.

    A position brings records again, with empty state; a savepoint or a generation brings the state back too.
    """
    from headrace.core.positions import SplitScope
    from headrace.engine.positions.rewind import finish_row_removal, while_stopped
    from headrace.engine.positions.rewind_plan import CheckpointCopy

    loaded, state, named = opened(names, project, profile, overrides)
    who = rewinder(loaded, state, one_flow(named, "rewind"))
    with while_stopped(state, who.flow.name):
        current = who.generations.current()
        if current is not None and not dry_run:
            finish_row_removal(who.flow, current, who.context)
        target = parse_target(to, who)
        plan = (
            who.to_checkpoint(target, replace)
            if isinstance(target, CheckpointCopy)
            else who.to_position(target, SplitScope(), replace)
        )
        carry_out(who, plan, dry_run=dry_run, yes=yes, json=json)


def parse_target(text: str, who: Rewinder) -> Target | CheckpointCopy:
    """What `--to` means: words first, then names, then files, then times."""
    from headrace.core.positions import AtTime, Earliest, Latest, parse_time
    from headrace.engine.positions.rewind_plan import CheckpointCopy
    from headrace.engine.positions.savepoints import Savepoints

    if text in ("earliest", "latest"):
        return Earliest() if text == "earliest" else Latest()
    savepoints = Savepoints(who.state, who.flow.name)
    savepoint, generation = savepoints.find(text), who.generations.find(text)
    if savepoint is not None:
        return CheckpointCopy(f"savepoint {text}", savepoint.generation)
    if generation is not None:
        return CheckpointCopy(f"generation {text}", generation)
    if text.endswith((".json", ".csv")):
        return offsets_in(Path(text))
    try:
        return AtTime(parse_time(text))
    except ValueError:
        known = [one.info.name for one in savepoints.all()] + [one.id for one in who.generations.all()]
        raise ProjectError(
            "unknown-target",
            f"'{text}' is neither earliest nor latest, a time, a file with offsets, a savepoint or a generation",
            hint=did_you_mean(text, ["earliest", "latest", *known], f"for flow '{who.flow.name}'"),
            exit_code=Exit.NOT_FOUND,
        ) from None
