"""List, delete and abandon generations of flows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from headrace.cli.terminal.confirm import confirm
from headrace.cli.terminal.output import printer, usage_error
from headrace.cli.terminal.positions_output import DryRun, Yes, aligned, known_flow, known_flows, one_flow
from headrace.cli.terminal.project_args import Json, Names, OneFlow, ProjectTarget, project_options
from headrace.core.errors import Exit, ProjectError, did_you_mean
from headrace.core.runtime.lazy import lazy_modules

if TYPE_CHECKING:
    from headrace.engine.positions import rewind
    from headrace.engine.state.generations import Generation, Generations
    from headrace.engine.supervise import candidate as supervise_candidate
else:
    rewind, supervise_candidate = lazy_modules(
        "headrace.engine.positions.rewind", "headrace.engine.supervise.candidate"
    )

app = typer.Typer(help=__doc__, no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
@project_options(Names)
def list_(
    target: ProjectTarget,
    json: Json = False,
) -> None:
    """List the generations of all flows, or of those named: the current one, the candidate, and those that are kept."""
    (loaded, state), flows = target.open(), target.flows
    chosen = known_flows(loaded, flows)
    documents = [
        _describe(flow, generations, generation)
        for flow in chosen
        for generations in [state.generations(flow)]
        for generation in generations.all()
    ]
    if json:
        printer.document(documents)
        return
    rows = [["flow", "generation", "role", "created", "batches", "reason"]]
    rows += [
        [row["flow"], row["generation"], row["role"], row["created_at"], str(row["batches"]), row["reason"]]
        for row in documents
    ]
    for line in aligned(rows) if documents else ["no generations"]:
        printer.data(line)


def _describe(flow: str, generations: Generations, generation: Generation) -> dict[str, Any]:
    manifest, committed = generation.manifest, generation.checkpoint.committed()
    return {
        "flow": flow,
        "generation": generation.id,
        "role": _role(generations, generation),
        "created_at": manifest.created_at,
        "parent": manifest.parent,
        "reason": manifest.reason,
        "batches": 0 if committed is None else committed.batch_id + 1,
        "defined": generation.definition.is_file(),
    }


def _role(generations: Generations, generation: Generation) -> str:
    if generation == generations.current():
        return "current"
    return "candidate" if generation == generations.candidate() else "kept"


@app.command()
@project_options(Names)
def drop(
    target: ProjectTarget,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Delete an old generation: FLOW, then GENERATION. The flow can no longer return to it."""
    (loaded, state), names = target.open(), target.flows
    if len(names) != 2:
        raise usage_error("generations drop takes a flow and a generation", "headrace generations drop FLOW GENERATION")
    flow, generation_id = known_flow(loaded, names[0]), names[1]
    generations = state.generations(flow)
    generation = generations.find(generation_id)
    if generation is None:
        raise ProjectError(
            "unknown-generation",
            f"flow '{flow}' has no generation '{generation_id}'",
            hint=did_you_mean(generation_id, [known.id for known in generations.all()], "generations"),
            exit_code=Exit.NOT_FOUND,
        )
    _require_unused(flow, generations, generation)
    if not dry_run:
        confirm(f"Delete generation {generation.id} of flow '{flow}'?", yes)
        supervise_candidate.delete_generation(loaded, state, flow, generation)
    if json:
        printer.document({"flow": flow, "generation": generation.id, "done": not dry_run})
    else:
        printer.note(f"generation {generation.id} of flow '{flow}' {'would be' if dry_run else 'is'} deleted")


def _require_unused(flow: str, generations: Generations, generation: Generation) -> None:
    if generation == generations.candidate():
        why, hint = "it is being built", f"abandon it: headrace generations abandon {flow}"
    elif generation == generations.current():
        why, hint = "it is the current one", f"start a new generation first: headrace run --new-generation {flow}"
    elif generation in [before for before, _last in generations.lineage()]:
        why, hint = "the current one continues from it", "a running engine deletes it when nothing needs it any more"
    else:
        return
    raise ProjectError(
        "generation-in-use",
        f"generation {generation.id} of flow '{flow}' cannot be deleted: {why}",
        hint=hint,
        exit_code=Exit.CONFLICT,
    )


@app.command()
@project_options(OneFlow)
def abandon(
    target: ProjectTarget,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Abandon the candidate generation of a FLOW. Its output is removed."""
    (loaded, state), names = target.open(), target.flows
    flow = known_flow(loaded, one_flow(names, "generations abandon"))
    with rewind.while_stopped(state, flow, building=True):
        candidate = supervise_candidate.require_abandonable(state, flow)
        if not dry_run:
            confirm(f"Abandon candidate {candidate.id} of flow '{flow}' and remove its output?", yes)
            supervise_candidate.abandon_candidate(loaded, state, flow)
    if json:
        printer.document({"flow": flow, "generation": candidate.id, "done": not dry_run})
    else:
        printer.note(f"generation {candidate.id} of flow '{flow}' {'would be' if dry_run else 'is'} abandoned")
