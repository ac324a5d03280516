"""Check this machine and project, and say how to fix what is wrong."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from queue import Empty, Queue
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.environment._checks import Result, environment, failed
from headrace.cli.terminal.output import printer, usage_error
from headrace.cli.terminal.project_args import PROJECT_FILE, Json, Name, ProjectTarget, project_options
from headrace.core.durations import parse_duration
from headrace.core.errors import Exit, ProjectError, ProjectErrors

if TYPE_CHECKING:
    from headrace.core.context import Context
    from headrace.core.sink import Sink
    from headrace.core.source import Source
    from headrace.core.tables import TableSource
    from headrace.project.loader import Project

_SIGNS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}
_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
_STATE = ".headrace"


@project_options(Name)
def doctor(
    target: ProjectTarget,
    timeout: Annotated[str, typer.Option(metavar="DURATION", help="How long a source or sink may take.")] = "15s",
    json: Json = False,
) -> None:
    """Check this machine and project, and say how to fix what is wrong.

    Looks at Python, Java, jars, libraries, memory, disk and ports. With a project (named, or in the current folder) its
    sources and sinks are checked too: brokers, topics, files. Exits 1 when a check fails.
    """
    results: list[Result] = []
    for result in _results(target, timeout):
        results.append(result)
        if not json:
            _show(result)
    ok = all(result.state != "fail" for result in results)
    if json:
        printer.document({"ok": ok, "checks": [result.to_json() for result in results]})
    if not ok:
        raise typer.Exit(Exit.FAILED)


def _results(target: ProjectTarget, timeout: str) -> Iterator[Result]:
    if not target.is_named and not Path(PROJECT_FILE).is_file():
        yield from environment(Path(_STATE).absolute())
        return
    deadline = _duration(timeout)
    loaded, problems = _load(target)
    state = loaded.context.state if loaded else _STATE
    yield from environment(Path(state if "://" not in state else _STATE).absolute())
    yield from problems
    if loaded is not None:
        yield from component_checks(loaded, deadline)


def _load(target: ProjectTarget) -> tuple[Project | None, list[Result]]:
    """The project, or why it cannot be read. A project that does not exist is a usage error, not a result."""
    try:
        return target.load(), []
    except ProjectErrors as errors:
        return None, [_unreadable(error) for error in errors.errors]
    except ProjectError as error:
        if error.exit_code in (Exit.NOT_FOUND, Exit.USAGE):
            raise
        return None, [_unreadable(error)]


def _unreadable(error: ProjectError) -> Result:
    return failed(f"project {error.where}" if error.where else "project", error)


def component_checks(project: Project, deadline: timedelta) -> Iterator[Result]:
    """Let each source, table and sink check its external system, all in parallel."""
    components: dict[str, Source | TableSource | Sink] = {}
    components |= {f"stream {name}": stream.source for name, stream in project.spec.streams.items()}
    components |= {f"table {name}": table.source for name, table in project.spec.tables.items()}
    for name, flow in project.spec.flows.items():
        components |= {f"flow {name}, sink {index} ({sink.kind()})": sink for index, sink in enumerate(flow.sinks)}
    answers: Queue[Result] = Queue()
    for check, component in components.items():
        # daemon threads: a client that hangs must not keep the command from ending
        threading.Thread(target=_check, args=(check, component, project.context, answers), daemon=True).start()
    results = _collect(answers, len(components), monotonic() + deadline.total_seconds())
    fix = "is it reachable from here? try again with a longer --timeout"
    for check in components:
        yield results.get(check) or Result(check, "fail", f"no answer within {deadline.total_seconds():g} s", fix)


def _check(check: str, component: Source | TableSource | Sink, context: Context, answers: Queue[Result]) -> None:
    try:
        component.check(context)
        answers.put(Result(check, "ok", "answers"))
    except ProjectError as error:
        answers.put(failed(check, error))
    except Exception as error:  # clients raise any exception; one bad check must not hide the others
        answers.put(Result(check, "fail", f"{type(error).__name__}: {error}", "check its options"))


def _collect(answers: Queue[Result], expected: int, until: float) -> dict[str, Result]:
    results: dict[str, Result] = {}
    while len(results) < expected:
        try:
            result = answers.get(timeout=max(0.0, until - monotonic()))
        except Empty:
            break
        results[result.check] = result
    return results


def _show(result: Result) -> None:
    lines = [f"{_SIGNS[result.state]}  {result.check}: {result.detail}"]
    if result.fix and result.state != "ok":
        lines.append(f"      fix: {result.fix}")
    text = printer.redact("\n".join(lines))
    if not printer.on_terminal():
        printer.data(text)
        return
    from rich.text import Text

    styled = Text(text)
    styled.stylize(_STYLES[result.state], 0, 4)
    printer.render(styled)


def _duration(text: str) -> timedelta:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise usage_error(f"--timeout: {error}") from error
