"""Show positions and lag of flows; move flows to other offsets."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.terminal.output import printer, usage_error
from headrace.cli.terminal.positions_output import DryRun, Yes, aligned, carry_out, one_flow, rewinder, shown
from headrace.cli.terminal.project_args import Json, Names, OneFlow, ProjectTarget, project_options
from headrace.core.errors import Exit, ProjectError
from headrace.core.options.durations import parse_duration
from headrace.core.positions import (
    AtOffset,
    AtTime,
    Current,
    Earliest,
    Explicit,
    Latest,
    ShiftBy,
    SplitScope,
    parse_offsets,
    parse_scope,
    parse_time,
)
from headrace.core.runtime.lazy import lazy_modules

if TYPE_CHECKING:
    from headrace.core.positions import Target
    from headrace.engine.positions import lag as position_lag
    from headrace.engine.positions import rewind
    from headrace.engine.positions.lag import FlowLag
    from headrace.plan import planner
else:
    position_lag, rewind, planner = lazy_modules(
        "headrace.engine.positions.lag", "headrace.engine.positions.rewind", "headrace.plan.planner"
    )

app = typer.Typer(help=__doc__, no_args_is_help=True, rich_markup_mode=None)


@app.command()
@project_options(Names)
def show(
    target: ProjectTarget,
    json: Json = False,
) -> None:
    """Show position, end and lag of each partition, in records and seconds, whether the flow runs or not."""
    (loaded, state), flows = target.open(), target.flows
    lags = []
    for flow in planner.make_plan(loaded, flows).flows:
        probe = position_lag.LagProbe(loaded.spec.project, flow, loaded.context)
        try:
            lags.append(probe.measure(state.generations(flow.name).current()))
        finally:
            probe.close()
    if json:
        as_of = datetime.now(UTC).isoformat(timespec="milliseconds")
        printer.document({"as_of": as_of, "flows": [lag.to_json() for lag in lags]})
        return
    for lag in lags:
        for line in _lines(lag.to_json(), lag):
            printer.data(line)


def _lines(document: dict[str, Any], lag: FlowLag) -> list[str]:
    behind = f"lag {shown(document['lag'])} records, {shown(document['lag_s'])} s, {document['trend'] or '–'}"
    pace = f"{shown(document['rate_per_s'])} records/s, caught up in {shown(document['catch_up_s'])} s"
    lines = [f"flow {lag.flow} ({lag.generation or 'never run'}): {behind}; {pace}"]
    columns = ("topic", "partition", "start", "committed", "end", "lag", "lag_s")
    rows = [["stream", *columns]]
    rows += [[row["stream"], *(shown(row[name]) for name in columns)] for row in document["partitions"]]
    lines += [f"  {line}" for line in aligned(rows)] if document["partitions"] else []
    return lines + [f"  {name}: its source has no positions" for name in document["untold"]]


@app.command()
@project_options(OneFlow)
def reset(
    target: ProjectTarget,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the oldest record.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end.")] = False,
    to_current: Annotated[bool, typer.Option("--to-current", help="To where the flow is.")] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", metavar="N", help="To this offset.")] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option("--to-datetime", metavar="T", help="To the first record since then, e.g. 2026-01-31T12:00:00Z."),
    ] = None,
    by_duration: Annotated[
        str | None, typer.Option("--by-duration", metavar="D", help="To the first record of the last e.g. 2h.")
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", metavar="N", help="Forward by this many records, or back when negative.")
    ] = None,
    from_file: Annotated[
        Path | None,
        typer.Option("--from-file", metavar="F", help="To offsets in a file: JSON, or lines topic,partition,offset."),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="T[:P,…]", help="Only these topics or partitions; may be repeated."),
    ] = None,
    dry_run: DryRun = False,
    execute: Annotated[bool, typer.Option("--execute", help="Execute without confirmation.")] = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Move a stopped flow to other offsets, with the semantics of kafka-consumer-groups --reset-offsets.

    The flow gets a new generation that starts there, without state. The old one is kept, so the flow can return to it.
    """
    if dry_run and execute:
        raise usage_error("--dry-run and --execute exclude each other", "leave one of them out")
    targets: list[Target] = [
        *([Earliest()] if to_earliest else []),
        *([Latest()] if to_latest else []),
        *([Current()] if to_current else []),
        *([AtOffset(to_offset)] if to_offset is not None else []),
        *([_time(to_datetime)] if to_datetime is not None else []),
        *([_ago(by_duration)] if by_duration is not None else []),
        *([ShiftBy(shift_by)] if shift_by is not None else []),
        *([offsets_in(from_file)] if from_file is not None else []),
    ]
    if len(targets) != 1:
        raise usage_error(
            "several targets" if targets else "no target",
            "one of --to-earliest, --to-latest, --to-current, --to-offset, --to-datetime, --by-duration, --shift-by, "
            "--from-file",
        )
    try:
        scope = parse_scope(topic or []) if topic else SplitScope()
    except ValueError as error:
        raise usage_error(f"--topic: {error}") from None
    (loaded, state), names = target.open(), target.flows
    mover = rewinder(loaded, state, one_flow(names, "offsets reset"))
    with rewind.while_stopped(state, mover.flow.name):
        plan = mover.to_position(targets[0], scope)
        carry_out(mover, plan, dry_run=dry_run, yes=yes or execute, json=json)


def _time(text: str) -> Target:
    try:
        return AtTime(parse_time(text))
    except ValueError:
        raise usage_error(f"--to-datetime: '{text}' is not a time", "e.g. 2026-01-31T12:00:00Z") from None


def _ago(text: str) -> Target:
    try:
        return AtTime(datetime.now(UTC) - parse_duration(text))
    except ValueError as error:
        raise usage_error(f"--by-duration: {error}") from None


def offsets_in(file: Path) -> Target:
    """Read explicit offsets from a file. Raises ProjectError `missing-file` or `bad-offsets`."""
    try:
        return Explicit(parse_offsets(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise ProjectError("missing-file", f"{file}: {error.strerror}", exit_code=Exit.NOT_FOUND) from error
    except ValueError as error:
        raise ProjectError(
            "bad-offsets",
            f"{file} does not hold offsets: {error}",
            hint='JSON such as {"orders": {"0": 12}}, or lines topic,partition,offset',
            exit_code=Exit.USAGE,
        ) from error
