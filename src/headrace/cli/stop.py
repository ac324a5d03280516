"""`headrace stop`: let a running engine finish its batches and end."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.engines import seconds_of, state_of
from headrace.cli.output import printer
from headrace.cli.project_args import Json, Name, Overrides, Profile, ProjectOption, only_project
from headrace.core.errors import Exit, ProjectError

if TYPE_CHECKING:
    from headrace.engine.state import StateDir

_LOOK_SECONDS = 0.05


def stop(
    name: Name = None,
    project: ProjectOption = None,
    profile: Profile = None,
    overrides: Overrides = None,
    timeout: Annotated[str, typer.Option("--timeout", metavar="TIME", help="How long to wait for its end.")] = "60s",
    json: Json = False,
) -> None:
    """Stop the engine that runs a project, and wait until it has ended.

    It finishes the running batches first (see `run --stop-timeout`). Nothing to stop is fine.
    """
    state = state_of(only_project(name, project), profile, overrides)
    patience = seconds_of("--timeout", timeout)
    pid = _pid(state)
    if pid is None:
        _say(json, None, "no engine runs")
        return
    deadline = time.monotonic() + patience
    while pid == 0 and time.monotonic() < deadline:  # it has only just taken the folder
        time.sleep(_LOOK_SECONDS)
        pid = _pid(state) or 0
    if pid:
        _terminate(pid)
    while _pid(state) == pid:
        if time.monotonic() > deadline:
            raise ProjectError(
                "stop-timeout",
                f"the engine (pid {pid}) has not ended after {timeout}",
                hint=f"wait longer with --timeout, or kill -9 {pid}: the next start then repeats its running batch",
                exit_code=Exit.TIMEOUT,
            )
        time.sleep(_LOOK_SECONDS)
    _say(json, pid, f"engine {pid} has stopped")


def _pid(state: StateDir) -> int | None:
    """The process of the engine, None when none runs."""
    holder = state.holder()
    if holder is not None and holder.host:
        raise ProjectError(
            "engine-elsewhere",
            f"the engine runs on another machine: {holder}",
            hint=f"stop it there: headrace stop, or kill {holder.pid}",
            exit_code=Exit.CONFLICT,
        )
    return None if holder is None else holder.pid


def _terminate(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return  # it ended by itself
    except PermissionError as error:
        hint = "stop it as that user"
        raise ProjectError("not-permitted", f"process {pid} belongs to another user", hint=hint) from error


def _say(json: bool, pid: int | None, text: str) -> None:
    if json:
        printer.document({"stopped": pid is not None, "pid": pid})
    else:
        printer.note(text)
