"""List, show, replay and discard records that could not be processed."""

from __future__ import annotations

import json as jsonlib
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headrace.cli.data._letters_output import (
    letter_document,
    letters,
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
    from headrace.engine.letters.dead_letter_index import DeadLetterStore, LetterBook
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
    str | None, typer.Option("--since", metavar="T", help="Only those met since a time, or in the last e.g. 2h.")
]
_Status = Annotated[Literal["open", "replayed", "discarded", "all"], typer.Option("--status", help="Which of them.")]
_By = Annotated[Literal["reason", "stream", "flow", "day"], typer.Option("--by", help="What to count by.")]
_Flow = Annotated[str | None, typer.Option("--flow", metavar="F", help="All open ones of this flow.")]
_All = Annotated[bool, typer.Option("--all", help="All open ones.")]
_Ids = Annotated[
    list[str] | None, typer.Argument(metavar="ID", help="Ids, or as much of them as tells them apart; FLOW/ID too.")
]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]
_Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
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
    _, book, flow = _opened(target)
    wanted = dead_letter_index.LetterFilter(flow, stream, reason, moment(since), None if status == "all" else status)
    with book.reading(flow):
        shelf = book.shelf(flow)
        chosen = wanted.of(shelf.index)
        rows = shelf.newest(chosen, limit or None)
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
    _, book, flow = _opened(target)
    wanted = dead_letter_index.LetterFilter(flow, stream, reason, moment(since), None if status == "all" else status)
    print_counts(wanted.of(book.shelf(flow).index), by, json)


@app.command()
@project_options()
def show(
    target: ProjectTarget,
    letter: Annotated[str, typer.Argument(metavar="ID", help="Its id, or as much of it as tells it apart.")],
    raw: Annotated[bool, typer.Option("--raw", help="Write the record's bytes to stdout, and nothing else.")] = False,
    json: Json = False,
) -> None:
    """Show one dead letter: its metadata, the record itself, and its history."""
    if raw and json:
        raise usage_error("--raw and --json exclude each other", "leave one of them out")
    _, book, _ = _opened(target)
    with book.reading():
        shelf = book.shelf()
        found = book.find(shelf, [letter])
        row = next(shelf.fetch(found)).to_pylist()[0] | {"status": found["status"][0].as_py()}
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
            f"dead letter '{letter}' was kept without its bytes",
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
    """Mark dead letters as dealt with. Nothing is deleted; `list --status discarded` still shows them."""
    _check_choice(ids, all_, {"--reason": reason, "--flow": flow})
    _, book, _ = _opened(target)
    with nullcontext() if dry_run else book.history.lock():
        chosen = _with_status(_chosen(book, book.shelf(), ids, flow, reason), ("open",))
        _refuse_half_replayed(book, chosen)
        if chosen.num_rows and not dry_run:
            confirm(f"Discard {letters(chosen.num_rows)}?", yes)
            book.history.append("discarded", chosen)
    if json:
        printer.document({"discarded": chosen.num_rows, "dry_run": dry_run})
    else:
        printer.data(f"{'would discard' if dry_run else 'discarded'} {letters(chosen.num_rows)}")


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
    """Bring dead letters through their flows again, after a fix of the project.

    Each row arrives once in exactly-once sinks, also when a replay is interrupted and run again: what was begun is
    finished first. Letters that are still bad stay open, and the exit code is then 1.
    """
    _check_choice(ids, all_, {"--flow": flow})
    if ids and reason:
        raise usage_error("--reason chooses among the letters of a flow, and ids were named", "leave one of them out")
    loaded, book, _ = _opened(target)
    with nullcontext() if dry_run else book.history.lock(), book.reading():
        shelf = book.shelf()
        chosen = _chosen(book, shelf, ids, flow, reason)
        plan = _planned(loaded, shelf, chosen, ids, flow)
        if plan.refused and not plan.replays:
            raise ProjectErrors([one.why for one in plan.refused])
        if not json:
            print_plan(plan)
        outcomes = [] if dry_run or not plan.replays else _carry_out(loaded, plan, shelf, yes)
    _report(plan, outcomes, dry_run, json)


def _planned(
    project: Project, shelf: DeadLetterStore, chosen: pa.Table, ids: list[str] | None, flow: str | None
) -> ReplayPlan:
    state = _state(project)
    begun = replay_folders.UnfinishedReplays(state.replays).flows()
    if ids or flow:
        begun &= {flow, *chosen["flow"].unique().to_pylist()}
    # a letter that was discarded can still be replayed, by its name
    wanted = _with_status(chosen, ("open", "discarded") if ids else ("open",))
    return replay_plan.ReplayPlanner(project, state, shelf).plan(wanted, begun)


def _carry_out(project: Project, plan: ReplayPlan, shelf: DeadLetterStore, yes: bool) -> list[ReplayOutcome]:
    confirm(f"Replay {letters(sum(one.letters for one in plan.replays))}?", yes)
    state = _state(project)
    with engine_replay.single_writer_lock(state, plan.replays):
        _check_sinks(project, plan)
        printer.note(f"starting Spark on {project.spec.spark.master} …")
        # a separate log file: an engine may be writing to the other
        name, store = f"{project.spec.project} replay", project.context.state_store
        spark = session.start_session(project.spec.spark, name, state.logs / "replay", store)
        try:
            replayer = engine_replay.DeadLetterReplayer(project, state, spark)
            return [replayer.run(one, shelf) for one in plan.replays]
        finally:
            for one in plan.replays:
                if one.is_begun:
                    printer.note(f"{one.flow.name}: replay {one.id} is not finished; the next replay finishes it first")
            spark.stop()


def _check_sinks(project: Project, plan: ReplayPlan) -> None:
    for one in plan.replays:
        for index, step in enumerate(one.flow.sinks):
            try:
                step.sink.check(project.context)
            except ProjectError as error:
                raise error.at(project.origin("flows", one.flow.name, "sinks", index)) from None


def _report(plan: ReplayPlan, outcomes: list[ReplayOutcome], dry_run: bool, json: bool) -> None:
    if json:
        printer.document(replay_document(plan, outcomes, dry_run))
    else:
        for outcome in outcomes:
            printer.data(outcome_text(outcome))
        if dry_run or not plan.replays:
            printer.data(f"would replay {letters(sum(one.letters for one in plan.replays))}" if plan.replays else _NONE)
    if plan.refused or any(outcome.still_bad or outcome.new for outcome in outcomes):
        raise typer.Exit(int(Exit.FAILED))


def _opened(target: ProjectTarget) -> tuple[Project, LetterBook, str | None]:
    """The project, the index of its dead letters and the flow that was named."""
    flow, (project, state) = target.flow(), target.open()
    book = dead_letter_index.LetterBook(state.dead_letters)
    if flow is not None and flow not in project.spec.flows and not (book.folder / flow).is_dir():
        raise unknown_flow(flow, project.spec.flows)
    return project, book, flow


def _state(project: Project) -> StateDir:
    return StateDir.of(project.context)


def _check_choice(ids: list[str] | None, everything: bool, others: dict[str, str | None]) -> None:
    """Refuse no selection, and two kinds of selection at once."""
    given = [name for name, value in others.items() if value is not None]
    if not (ids or everything or given):
        raise usage_error("no dead letters were named", f"name ids, {', '.join(others)} or --all")
    if bool(ids) + everything + bool(given) > 1:
        raise usage_error("ids, --all and a choice by flow or reason exclude each other", "use one of them")


def _chosen(
    book: LetterBook, shelf: DeadLetterStore, ids: list[str] | None, flow: str | None, reason: str | None
) -> pa.Table:
    if ids:
        return book.find(shelf, ids)
    return dead_letter_index.LetterFilter(flow=flow, reason=reason, status=None).of(shelf.index)


def _with_status(chosen: pa.Table, status: tuple[str, ...]) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    return chosen.filter(pc.is_in(chosen["status"], pa.array(status)))


def _refuse_half_replayed(book: LetterBook, chosen: pa.Table) -> None:
    """A letter whose replay was begun may have reached some sinks already."""
    begun = replay_folders.UnfinishedReplays(book.folder.parent / "replays")
    for flow in sorted(begun.flows() & set(chosen["flow"].unique().to_pylist())):
        if begun.holds(flow, chosen):
            raise ProjectError(
                "replay-unfinished",
                f"a replay of some of these letters of flow '{flow}' was begun and not finished",
                hint=f"finish it first: headrace dead-letters replay --flow {flow}",
                exit_code=Exit.CONFLICT,
            )
