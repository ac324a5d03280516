"""Rewind a flow to an earlier position or savepoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.operations.offsets import offsets_in
from headrace.cli.terminal.positions_output import DryRun, Yes, carry_out, one_flow, rewinder
from headrace.cli.terminal.project_args import Json, OneFlow, ProjectTarget, project_options
from headrace.core.errors import Exit, ProjectError, did_you_mean
from headrace.core.positions import AtTime, Earliest, Latest, SplitScope, parse_time
from headrace.core.runtime.lazy import lazy_modules

if TYPE_CHECKING:
    from headrace.core.positions import Target
    from headrace.engine.positions import rewind as position_rewind
    from headrace.engine.positions import rewind_plan
    from headrace.engine.positions import savepoints as position_savepoints
    from headrace.engine.positions.rewind import Rewinder
    from headrace.engine.positions.rewind_plan import CheckpointCopy
else:
    position_rewind, position_savepoints, rewind_plan = lazy_modules(
        "headrace.engine.positions.rewind",
        "headrace.engine.positions.savepoints",
        "headrace.engine.positions.rewind_plan",
    )


@project_options(OneFlow)
def rewind(
    target: ProjectTarget,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="TARGET",
            help="earliest, latest, a time, a file with offsets (.json, .csv), a savepoint or an earlier generation.",
        ),
    ],
    replace: Annotated[
        bool, typer.Option("--replace", help="Remove the rows written since, from sinks that can.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Rewind a stopped flow to an earlier position, as a new generation; the old one is kept.

    A position replays records with empty state; a savepoint or a generation restores the state too.
    """
    (loaded, state), names = target.open(), target.flows
    mover = rewinder(loaded, state, one_flow(names, "rewind"))
    with position_rewind.while_stopped(state, mover.flow.name):
        current = mover.generations.current()
        if current is not None and not dry_run:
            position_rewind.finish_row_removal(mover.flow, current, mover.context)
        goal = parse_target(to, mover)
        plan = (
            mover.to_checkpoint(goal, replace)
            if isinstance(goal, rewind_plan.CheckpointCopy)
            else mover.to_position(goal, SplitScope(), replace)
        )
        carry_out(mover, plan, dry_run=dry_run, yes=yes, json=json)


def parse_target(text: str, mover: Rewinder) -> Target | CheckpointCopy:
    """Parse `--to`: a keyword, a savepoint or generation, a file of offsets, or a time."""
    if text in ("earliest", "latest"):
        return Earliest() if text == "earliest" else Latest()
    savepoints = position_savepoints.Savepoints(mover.state, mover.flow.name)
    savepoint, generation = savepoints.find(text), mover.generations.find(text)
    if savepoint is not None:
        return rewind_plan.CheckpointCopy(f"savepoint {text}", savepoint.generation)
    if generation is not None:
        return rewind_plan.CheckpointCopy(f"generation {text}", generation)
    if text.endswith((".json", ".csv")):
        return offsets_in(Path(text))
    try:
        return AtTime(parse_time(text))
    except ValueError:
        known = [saved.info.name for saved in savepoints.all()] + [known.id for known in mover.generations.all()]
        raise ProjectError(
            "unknown-target",
            f"'{text}' is neither earliest nor latest, a time, a file with offsets, a savepoint or a generation",
            hint=did_you_mean(text, ["earliest", "latest", *known], f"for flow '{mover.flow.name}'"),
            exit_code=Exit.NOT_FOUND,
        ) from None
