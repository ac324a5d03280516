"""Run a project's flows."""

from __future__ import annotations

import json as jsonlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.projects._capturing import Capturing
from headrace.cli.projects._child_processes import SupervisedChild
from headrace.cli.projects._generation_changes import NewGenerations, settle_changes
from headrace.cli.projects._serving import Serving, wants_serving
from headrace.cli.terminal.engines import seconds_of
from headrace.cli.terminal.output import printer
from headrace.cli.terminal.project_args import Json, Names, ProjectTarget, project_options
from headrace.cli.terminal.signals import stop_on_signal
from headrace.core.capabilities import lake_paths
from headrace.core.errors import Exit, ProjectError
from headrace.core.lazy import lazy_modules
from headrace.engine.inputs.lake import is_table
from headrace.engine.state.state import StateDir

if TYPE_CHECKING:
    from headrace.core.tables import TableShape
    from headrace.engine.flows import checks
    from headrace.engine.flows import flow as flow_flow
    from headrace.engine.letters import dead_letter_index
    from headrace.engine.observe import reporting as observe_reporting
    from headrace.engine.spark import session
    from headrace.engine.state import schemas as state_schemas
    from headrace.engine.state.state import StateDir
    from headrace.engine.supervise import runner as supervise_runner
    from headrace.engine.supervise import schema_watch
    from headrace.engine.supervise.candidate_switch import CandidateSwitch
    from headrace.engine.supervise.runner import FlowRun
    from headrace.engine.supervise.schema_watch import SchemaWatch
    from headrace.plan import planner, view_planning
    from headrace.plan.model import Plan
    from headrace.project.loader import Project
    from headrace.project.project_ref import ProjectRef
    from headrace.project.tables import TableSpec
else:
    (
        checks,
        flow_flow,
        dead_letter_index,
        observe_reporting,
        session,
        state_schemas,
        supervise_runner,
        schema_watch,
        planner,
        view_planning,
    ) = lazy_modules(
        "headrace.engine.flows.checks",
        "headrace.engine.flows.flow",
        "headrace.engine.letters.dead_letter_index",
        "headrace.engine.observe.reporting",
        "headrace.engine.spark.session",
        "headrace.engine.state.schemas",
        "headrace.engine.supervise.runner",
        "headrace.engine.supervise.schema_watch",
        "headrace.plan.planner",
        "headrace.plan.view_planning",
    )

_SECONDS_BETWEEN_LINES = 10.0
_FLOWS_ON_ONE_LINE = 4


@project_options(Names)
def run(
    target: ProjectTarget,
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up", help="Process the records that exist now, then end.")
    ] = False,
    for_: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="End by itself after this time, e.g. 30s.")
    ] = None,
    stop_timeout: Annotated[
        str, typer.Option("--stop-timeout", metavar="TIME", help="How long running batches may take to finish.")
    ] = "30s",
    new_generation: Annotated[
        list[str] | None,
        typer.Option("--new-generation", metavar="FLOW", help="Give this flow a new generation; may be repeated."),
    ] = None,
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="start|current", help="Where a new generation starts to read; default start."),
    ] = None,
    beside: Annotated[
        bool,
        typer.Option("--beside", help="Build the new generation while the old one runs; switch when it has caught up."),
    ] = False,
    json: Json = False,
) -> None:
    """Run a project's flows, all or those named.

    Rows of console sinks go to stdout, progress goes to stderr. Ctrl-C finishes the running batches and stops.
    A flow that fails because an outside system is unavailable retries until it is back: see `headrace status`.
    Endpoints that the flows write are served as by `headrace serve`, except with --until-caught-up. A separate
    process captures the project's tables as long as this one runs.
    """
    seconds = None if for_ is None else seconds_of("--for", for_)
    patience = seconds_of("--stop-timeout", stop_timeout)
    loaded, flows = target.load(), target.flows
    state = StateDir.of(loaded.context)
    with state.lock(), stop_on_signal() as stopping:
        plan = _plan(loaded, state, flows)
        settle_changes(loaded, state, plan, NewGenerations(tuple(new_generation or ()), from_, beside), until_caught_up)
        checks.check_services(loaded, plan)
        with ExitStack() as stack:
            children = [
                stack.enter_context(child) for child in _children(loaded, plan, state, target.ref(), until_caught_up)
            ]
            runs = _run(loaded, plan, state, stopping, until_caught_up, seconds, patience, json, children, not flows)
    _finish(runs, loaded, json)
    if until_caught_up and stopping.is_set() and not all(run.caught_up for run in runs):
        raise typer.Exit(int(Exit.INTERRUPTED))


def _children(
    project: Project, plan: Plan, state: StateDir, project_ref: ProjectRef, until_caught_up: bool
) -> Iterator[SupervisedChild]:
    if project.spec.tables:
        yield Capturing(project_ref, project, state.logs)
    if not until_caught_up and wants_serving(project, plan):
        yield Serving(project_ref, project, state.logs)


def _plan(project: Project, state: Any, flows: Sequence[str]) -> Plan:
    def shape_of(name: str, spec: TableSpec) -> TableShape | None:
        return view_planning.known_shape(project, name, spec) or spec.shape(name, project.context)

    plan = planner.make_plan(
        project, flows, lambda name, spec: state_schemas.infer_schema(project, state, name, spec), shape_of
    )
    if not plan.flows:
        raise ProjectError(
            "nothing-to-run",
            "no flow has a sink",
            hint="add 'sinks: [console]' to a flow",
            exit_code=Exit.NOT_FOUND,
        )
    return plan


def _run(
    project: Project,
    plan: Plan,
    state: Any,
    stopping: threading.Event,
    until_caught_up: bool,
    seconds: float | None,
    patience: float,
    json: bool,
    children: Sequence[SupervisedChild] = (),
    scheduled: bool = True,
) -> list[FlowRun]:
    for flow in plan.flows:
        inputs, sinks = (flow_input.name for flow_input in flow.inputs), (step.sink.label for step in flow.sinks)
        printer.note(f"{flow.name}: {', '.join(inputs)} → {', '.join(sinks)}")
    printer.note(f"starting Spark on {project.spec.spark.master} …")
    store = project.context.state_store
    spark = session.start_session(project.spec.spark, project.spec.project, state.logs, store)
    try:
        starter = flow_flow.FlowStarter(project, state, spark, until_caught_up)
        schemas = schema_watch.SchemaWatch(project, state, starter.probe)
        newest = _with_newest(schemas, plan)
        runner = supervise_runner.Runner(
            starter, newest, stopping, stop_seconds=patience, schemas=schemas, scheduled=scheduled
        )
        for child in children:
            child.note = runner.notes.add
        with observe_reporting.Reporting(project, state, runner, http=not until_caught_up) as reporting:
            if reporting.server is not None:
                note = f" ({reporting.server.note})" if reporting.server.note else ""
                printer.note(f"status and metrics: {reporting.server.address}{note}")
                printer.note(f"  headrace status{_option(project)} --watch")
            printer.note(_until(seconds, until_caught_up))
            return runner.run(seconds=seconds, report=_Reporter(json, reporting.changed, children))
    finally:
        printer.note("stopping …")
        session.stop_session(spark)


def _with_newest(schemas: SchemaWatch, plan: Plan) -> Plan:
    """Return the plan with the newest reachable registry schemas that the flows accept."""
    for warning in schemas.look():
        printer.warning(warning)
    plans = schemas.take()
    return replace(plan, flows=tuple(plans.get(flow.name, flow) for flow in plan.flows))


class _Reporter:
    """Prints progress every few seconds, and at once when a flow fails or is degraded."""

    def __init__(
        self, json: bool, changed: Callable[[Sequence[FlowRun]], None], children: Sequence[SupervisedChild] = ()
    ) -> None:
        self._json = json
        self._changed = changed
        self._children = children
        self._next = time.monotonic() + _SECONDS_BETWEEN_LINES
        self._reported: dict[str, str] = {}
        self._steps: dict[str, str | None] = {}

    def __call__(self, runs: Sequence[FlowRun]) -> None:
        self._changed(runs)
        for child in self._children:
            child.tend()
        for run in runs:
            self._report_candidate(run)
            now = f"{run.state} {run.reason.code if run.reason else ''}"
            if self._reported.get(run.plan.name, "") != now:
                self._report(run, self._reported.get(run.plan.name, ""))
                self._reported[run.plan.name] = now
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _SECONDS_BETWEEN_LINES
        if self._json:
            for run in runs:
                printer.note(jsonlib.dumps(_document(run)))
        elif not all(run.state in ("stopped", "failed") for run in runs):  # their results are printed at the end
            self._report_all(runs)

    def _report_all(self, runs: Sequence[FlowRun]) -> None:
        on_terminal = printer.notes_on_terminal()
        if on_terminal:
            printer.progress(_summary(runs))
        for run in runs:
            if not on_terminal:
                printer.note(_line(run))
            if run.switch is not None:
                printer.note(_candidate_line(run.switch))

    def _report_candidate(self, run: FlowRun) -> None:
        """Report each step of a candidate generation, and the switch to it."""
        name, switch = run.plan.name, run.switch
        before, now = self._steps.get(name), None if switch is None else switch.text
        if now == before:
            return
        self._steps[name] = now
        if switch is None:
            printer.note(f"{name}: switched to the candidate generation")
        else:
            printer.note(jsonlib.dumps(_document(run)) if self._json else _candidate_line(switch))

    def _report(self, run: FlowRun, before: str) -> None:
        """Report failures, degradation and stops, and the recovery from them."""
        if run.error is not None:
            printer.error(run.error)
        elif run.reason is not None or run.stop_order is not None or before.startswith(("degraded", "stopped")):
            printer.note(jsonlib.dumps(_document(run)) if self._json else _line(run))


def _document(run: FlowRun) -> dict[str, Any]:
    numbers = run.counters
    batch = numbers.last_batch or {}
    return {
        "flow": run.plan.name,
        "state": run.state,
        "reason": run.reason.text if run.reason else None,
        "rows_in": numbers.rows_in,
        "batches": numbers.batches,
        "rows_per_s": _rounded(numbers.rows_per_s()),
        "batch": batch.get("id"),
        "duration_s": batch.get("duration_s"),
        "watermark": numbers.watermark.isoformat() if numbers.watermark else None,
        "state_rows": numbers.state_rows,
        "restarts": run.restarts,
        "candidate": None if run.switch is None else _candidate(run.switch),
    }


def _candidate(switch: CandidateSwitch) -> dict[str, Any]:
    run = switch.candidate
    return {"generation": run.generation, "text": switch.text, "rows_in": run.rows_in, "batches": run.batches}


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 1)


def _until(seconds: float | None, until_caught_up: bool) -> str:
    if until_caught_up:
        return "running until all existing records are processed; Ctrl-C stops"
    return "running; Ctrl-C stops" if seconds is None else f"running for {seconds:g} s; Ctrl-C stops earlier"


def _summary(runs: Sequence[FlowRun]) -> str:
    """Summarise all flows on one line, so that tables of rows stay visible longer on a terminal."""
    rows, rates = sum(run.rows_in for run in runs), [run.counters.rows_per_s() or 0.0 for run in runs]
    each = [f"{run.plan.name} {run.rows_in:,}" for run in runs if run.rows_in]
    odd = [f"{run.plan.name} {run.state}" for run in runs if run.state != "running"]
    if not rows:
        return "; ".join(["waiting for the first rows", *odd])
    per_flow = f" ({', '.join(each)})" if 1 < len(each) <= _FLOWS_ON_ONE_LINE else ""
    return "; ".join([f"{rows:,} rows in{per_flow}, {sum(rates):,.0f} rows/s", *odd])


def _line(run: FlowRun) -> str:
    numbers = run.counters
    state = f"{run.state}: {run.reason.text}" if run.reason else run.state
    if run.stop_order is not None:
        state += f" (requested by {run.stop_order.by} at {run.stop_order.at})"
    batches = "1 batch" if run.batches == 1 else f"{run.batches} batches"
    parts = [f"{run.plan.name}: {state}, {run.rows_in:,} rows in, {batches}"]
    rate = numbers.rows_per_s()
    if rate is not None:
        parts.append(f"{rate:,.0f} rows/s")
    if numbers.watermark:
        parts.append(f"watermark {numbers.watermark:%Y-%m-%dT%H:%M:%SZ}")
    return ", ".join(parts)


def _candidate_line(switch: CandidateSwitch) -> str:
    run = switch.candidate
    which = f"candidate {run.generation}" if run.generation else "candidate"
    return f"{run.plan.name} ({which}): {switch.text}, {run.rows_in:,} rows in, {run.batches} batches"


def _finish(runs: Sequence[FlowRun], project: Project, json: bool) -> None:
    # the index has no record bytes: there may be very many records
    index = dead_letter_index.DeadLetterIndex(StateDir.of(project.context).dead_letters).read_without_status().index
    counts = {group["flow"]: group["count"] for group in dead_letter_index.count(index, "flow")}
    if json:
        printer.line({"flows": [{**_document(run), "dead_letters": counts.get(run.plan.name, 0)} for run in runs]})
    else:
        for run in runs:
            bad = counts.get(run.plan.name, 0)
            printer.note(_line(run) + (f", {bad:,} dead letters" if bad else ""))
        for text in _where_to_look(runs, project, bad=any(counts.get(run.plan.name) for run in runs)):
            printer.note(text)
    if any(run.error is not None for run in runs):
        raise typer.Exit(int(Exit.FAILED))  # each error was printed when it happened


def _where_to_look(runs: Sequence[FlowRun], project: Project, bad: bool) -> Iterator[str]:
    """Yield the locations of the results, and how to query them."""
    option = _option(project)
    for run in runs:
        path = next(iter(lake_paths(step.sink for step in run.plan.sinks)), None)
        if path is None:
            continue
        location = project.context.path(path)
        if "://" in location or is_table(location):
            yield f"{run.plan.name} is in {_from_here(location)}; query it:"
            yield f"  headrace sql{option} 'SELECT * FROM {run.plan.name} LIMIT 10'"
        else:
            yield f"{run.plan.name} has written no rows yet: {_from_here(location)} does not exist"
    if bad:
        yield "dead letters are records that could not be processed; list them:"
        yield f"  headrace dead-letters list{option}"


def _option(project: Project) -> str:
    """Return the option that names this project in another command."""
    return "" if project.root == Path.cwd() else f" -p {_from_here(str(project.root))}"


def _from_here(location: str) -> str:
    """Return a path relative to the current folder; a URL unchanged."""
    try:
        return str(Path(location).relative_to(Path.cwd())) if "://" not in location else location
    except ValueError:
        return location
