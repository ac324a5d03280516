"""List, show, replay and discard records that could not be processed."""

from __future__ import annotations

import json as jsonlib
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headrace.cli.data._letters_output import (
    letter_count,
    letter_document,
    moment,
    outcome_text,
    print_counts,
    print_letter,
    print_letters,
    print_plan,
    replay_document,
    timestamp,
    value_document,
)
from headrace.cli.terminal.confirm import confirm
from headrace.cli.terminal.output import printer, usage_error
from headrace.cli.terminal.project_args import Json, Names, ProjectTarget, project_options
from headrace.core.errors import Exit, ProjectError, ProjectErrors, unknown_flow
from headrace.core.lazy import lazy_modules
from headrace.engine.state.state import StateDir

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.engine.letters import dead_letter_index
    from headrace.engine.letters.dead_letter_index import DeadLetterIndex, DeadLetterStore
    from headrace.engine.replay import replay as engine_replay
    from headrace.engine.replay import replay_folders, replay_plan
    from headrace.engine.replay.replay import ReplayOutcome
    from headrace.engine.replay.replay_plan import ReplayPlan
    from headrace.engine.spark import session
    from headrace.engine.state.state import StateDir
    from headrace.project.loader import Project
else:
    dead_letter_index, engine_replay, replay_folders, replay_plan, session = lazy_modules(
        "headrace.engine.letters.dead_letter_index",
        "headrace.engine.replay.replay",
        "headrace.engine.replay.replay_folders",
        "headrace.engine.replay.replay_plan",
        "headrace.engine.spark.session",
    )

app = typer.Typer(help=__doc__, no_args_is_help=True, rich_markup_mode=None)

_Reason = Annotated[str | None, typer.Option("--reason", metavar="R", help="Only those with this reason.")]
_Stream = Annotated[str | None, typer.Option("--stream", metavar="S", help="Only those of this stream.")]
_Since = Annotated[
    str | None, typer.Option("--since", metavar="T", help="Only those since a time, or of the last e.g. 2h.")
]
_Status = Annotated[
    Literal["open", "replayed", "discarded", "all"], typer.Option("--status", help="Only those with this status.")
]
_By = Annotated[Literal["reason", "stream", "flow", "day"], typer.Option("--by", help="What to count by.")]
_Flow = Annotated[str | None, typer.Option("--flow", metavar="F", help="All open dead letters of this flow.")]
_All = Annotated[bool, typer.Option("--all", help="All open dead letters.")]
_Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Ids or unique prefixes of ids; also FLOW/ID.")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, without doing it.")]
_Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
_NONE = "nothing to replay"


@app.command("list")
@project_options(Names)
def list_(
    target: ProjectTarget,
    reason: _Reason = None,
    stream: _Stream = None,
    since: _Since = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="At most this many; 0 for all.")] = 50,
    status: _Status = "open",
    json: Json = False,
) -> None:
    """List dead letters, the newest first; on a terminal grouped by reason."""
    _, book, flow = _open(target)
    letter_filter = dead_letter_index.DeadLetterFilter(
        flow, stream, reason, moment(since), None if status == "all" else status
    )
    with book.locked(flow):
        store = book.read(flow)
        chosen = letter_filter.of(store.index)
        rows = store.newest(chosen, limit or None)
    if json:
        printer.document({"items": [letter_document(row) for row in rows], "total": chosen.num_rows, "next": None})
        return
    print_letters(rows, dead_letter_index.count(chosen, "reason"))
    if len(rows) < chosen.num_rows:
        printer.note(f"the newest {len(rows):,} of {chosen.num_rows:,}; --limit 0 shows all")
    elif not rows:
        printer.note("no dead letters")


@app.command("count")
@project_options(Names)
def count_(
    target: ProjectTarget,
    by: Annotated[
        Literal["reason", "stream", "flow", "day"], typer.Option("--by", help="What to count by.")
    ] = "reason",
    reason: _Reason = None,
    stream: _Stream = None,
    since: _Since = None,
    status: _Status = "open",
    json: Json = False,
) -> None:
    """Count dead letters."""
    _, book, flow = _open(target)
    letter_filter = dead_letter_index.DeadLetterFilter(
        flow, stream, reason, moment(since), None if status == "all" else status
    )
    print_counts(letter_filter.of(book.read(flow).index), by, json)


@app.command()
@project_options()
def show(
    target: ProjectTarget,
    letter: Annotated[str, typer.Argument(metavar="ID", help="The id, or a unique prefix of it.")],
    raw: Annotated[bool, typer.Option("--raw", help="Write the record's bytes to stdout, and nothing else.")] = False,
    json: Json = False,
) -> None:
    """Show one dead letter: its metadata, the record itself, and its history."""
    if raw and json:
        raise usage_error("--raw and --json exclude each other", "leave one of them out")
    _, book, _ = _open(target)
    with book.locked():
        store = book.read()
        letters = book.find(store, [letter])
        row = next(store.fetch(letters)).to_pylist()[0] | {"status": letters["status"][0].as_py()}
    if raw:
        _write_raw(row["value"], letter)
        return
    met = {"at": timestamp(row["met_at"]), "what": "met", "generation": row["generation"], "reason": row["reason"]}
    events = [met, *book.history.of(row["flow"], row["id"])]
    if json:
        metadata = jsonlib.loads(row["metadata"] or "{}")
        record = value_document(row["value"])
        printer.document({**letter_document(row), "metadata": metadata, **record, "history": events})
    else:
        print_letter(row, events)


def _write_raw(value: bytes | None, letter: str) -> None:
    if value is None:
        raise ProjectError(
            "replay-no-bytes",
            f"dead letter '{letter}' was stored without its bytes",
            hint="`on_error: dead_letter` keeps the bytes of streams that have a format",
        )
    sys.stdout.buffer.write(value)
    sys.stdout.buffer.flush()


@app.command()
@project_options()
def discard(
    target: ProjectTarget,
    ids: _Ids = None,
    reason: _Reason = None,
    flow: _Flow = None,
    all_: _All = False,
    dry_run: _DryRun = False,
    yes: _Yes = False,
    json: Json = False,
) -> None:
    """Mark dead letters as discarded. Nothing is deleted; `list --status discarded` still shows them."""
    _check_choice(ids, all_, {"--reason": reason, "--flow": flow})
    _, book, _ = _open(target)
    with nullcontext() if dry_run else book.history.lock():
        chosen = _with_status(_select(book, book.read(), ids, flow, reason), ("open",))
        _refuse_half_replayed(book, chosen)
        if chosen.num_rows and not dry_run:
            confirm(f"Discard {letter_count(chosen.num_rows)}?", yes)
            book.history.append("discarded", chosen)
    if json:
        printer.document({"discarded": chosen.num_rows, "dry_run": dry_run})
    else:
        printer.data(f"{'would discard' if dry_run else 'discarded'} {letter_count(chosen.num_rows)}")


@app.command()
@project_options()
def replay(
    target: ProjectTarget,
    ids: _Ids = None,
    flow: _Flow = None,
    reason: _Reason = None,
    all_: _All = False,
    dry_run: _DryRun = False,
    yes: _Yes = False,
    json: Json = False,
) -> None:
    """Process dead letters again, after a fix of the project.

    Each row arrives once in exactly-once sinks, also when a replay is interrupted and run again: an unfinished replay
    is finished first. Dead letters that fail again stay open, and the exit code is then 1.
    """
    _check_choice(ids, all_, {"--flow": flow})
    if ids and reason:
        raise usage_error(
            "--reason selects dead letters of a flow, and cannot be combined with ids", "leave one of them out"
        )
    loaded, book, _ = _open(target)
    with nullcontext() if dry_run else book.history.lock(), book.locked():
        store = book.read()
        chosen = _select(book, store, ids, flow, reason)
        plan = _plan(loaded, store, chosen, ids, flow)
        if plan.refused and not plan.replays:
            raise ProjectErrors([refusal.why for refusal in plan.refused])
        if not json:
            print_plan(plan)
        outcomes = [] if dry_run or not plan.replays else _carry_out(loaded, plan, store, yes)
    _report(plan, outcomes, dry_run, json)


def _plan(
    project: Project, store: DeadLetterStore, chosen: pa.Table, ids: list[str] | None, flow: str | None
) -> ReplayPlan:
    state = _state(project)
    unfinished = replay_folders.UnfinishedReplays(state.replays).flows()
    if ids or flow:
        unfinished &= {flow, *chosen["flow"].unique().to_pylist()}
    # a discarded dead letter can still be replayed by its id
    replayable = _with_status(chosen, ("open", "discarded") if ids else ("open",))
    return replay_plan.ReplayPlanner(project, state, store).plan(replayable, unfinished)


def _carry_out(project: Project, plan: ReplayPlan, letters: DeadLetterStore, yes: bool) -> list[ReplayOutcome]:
    confirm(f"Replay {letter_count(sum(replay.letters for replay in plan.replays))}?", yes)
    state = _state(project)
    with engine_replay.single_writer_lock(state, plan.replays):
        _check_sinks(project, plan)
        printer.note(f"starting Spark on {project.spec.spark.master} …")
        # a separate log file: an engine may be writing to the other
        name, store = f"{project.spec.project} replay", project.context.state_store
        spark = session.start_session(project.spec.spark, name, state.logs / "replay", store)
        try:
            replayer = engine_replay.DeadLetterReplayer(project, state, spark)
            return [replayer.run(replay, letters) for replay in plan.replays]
        finally:
            for replay in plan.replays:
                if replay.is_begun:
                    printer.note(
                        f"{replay.flow.name}: replay {replay.id} is not finished; the next replay finishes it first"
                    )
            spark.stop()


def _check_sinks(project: Project, plan: ReplayPlan) -> None:
    for replay in plan.replays:
        for index, step in enumerate(replay.flow.sinks):
            try:
                step.sink.check(project.context)
            except ProjectError as error:
                raise error.at(project.origin("flows", replay.flow.name, "sinks", index)) from None


def _report(plan: ReplayPlan, outcomes: list[ReplayOutcome], dry_run: bool, json: bool) -> None:
    if json:
        printer.document(replay_document(plan, outcomes, dry_run))
    else:
        for outcome in outcomes:
            printer.data(outcome_text(outcome))
        if dry_run or not plan.replays:
            printer.data(
                f"would replay {letter_count(sum(replay.letters for replay in plan.replays))}"
                if plan.replays
                else _NONE
            )
    if plan.refused or any(outcome.still_bad or outcome.new for outcome in outcomes):
        raise typer.Exit(int(Exit.FAILED))


def _open(target: ProjectTarget) -> tuple[Project, DeadLetterIndex, str | None]:
    """Return the project, the index of its dead letters and the named flow."""
    flow, (project, state) = target.flow(), target.open()
    book = dead_letter_index.DeadLetterIndex(state.dead_letters)
    if flow is not None and flow not in project.spec.flows and not (book.folder / flow).is_dir():
        raise unknown_flow(flow, project.spec.flows)
    return project, book, flow


def _state(project: Project) -> StateDir:
    return StateDir.of(project.context)


def _check_choice(ids: list[str] | None, everything: bool, filters: dict[str, str | None]) -> None:
    """Reject a missing selection, and two kinds of selection at once."""
    used = [name for name, value in filters.items() if value is not None]
    if not (ids or everything or used):
        raise usage_error("no dead letters are selected", f"name ids, {', '.join(filters)} or --all")
    if bool(ids) + everything + bool(used) > 1:
        raise usage_error("ids, --all and a selection by flow or reason exclude each other", "use one of them")


def _select(
    book: DeadLetterIndex, store: DeadLetterStore, ids: list[str] | None, flow: str | None, reason: str | None
) -> pa.Table:
    if ids:
        return book.find(store, ids)
    return dead_letter_index.DeadLetterFilter(flow=flow, reason=reason, status=None).of(store.index)


def _with_status(chosen: pa.Table, status: tuple[str, ...]) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    return chosen.filter(pc.is_in(chosen["status"], pa.array(status)))


def _refuse_half_replayed(book: DeadLetterIndex, chosen: pa.Table) -> None:
    """Reject dead letters of an unfinished replay: they may be in some sinks already."""
    unfinished = replay_folders.UnfinishedReplays(book.folder.parent / "replays")
    for flow in sorted(unfinished.flows() & set(chosen["flow"].unique().to_pylist())):
        if unfinished.holds(flow, chosen):
            raise ProjectError(
                "replay-unfinished",
                f"a replay of some of these dead letters of flow '{flow}' is not finished",
                hint=f"finish it first: headrace dead-letters replay --flow {flow}",
                exit_code=Exit.CONFLICT,
            )
