"""Start and stop real local services for development."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from headrace.core.errors import Exit, ProjectErrors
from headrace.testing import services

app = typer.Typer(help=__doc__, no_args_is_help=True, rich_markup_mode=None)

_NAMES = ", ".join(services.KINDS)
_Kinds = Annotated[list[str] | None, typer.Argument(metavar="KIND", help=f"Which: {_NAMES}.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
# These must be named: a cluster is three JVMs, and the S3 server must first be built by Go.
_BY_DEFAULT = [kind for kind in services.KINDS if kind not in ("spark", "s3")]


@app.command()
def install(kinds: _Kinds = None, json: _Json = False) -> None:
    """Install the requirements of services (all by default): Debian packages if run as root, jars with Ivy, programs
    built by Go."""
    selected = services.named(kinds or services.KINDS)
    problems = services.install(selected, report=_progress)
    for problem in problems.values():
        _progress(str(problem))
    states = {service.kind: "unavailable" if service.kind in problems else "ready" for service in selected}
    _print([{"kind": kind, "state": state} for kind, state in states.items()], json)
    if problems and os.environ.get("CI", "").lower() in {"true", "1"}:
        raise typer.Exit(Exit.FAILED)


@app.command()
def up(kinds: _Kinds = None, json: _Json = False) -> None:
    """Start services (all but spark and s3 by default); they run until `down`."""
    selected = services.named(kinds or _BY_DEFAULT)
    problems = [problem for service in selected if (problem := service.problem()) is not None]
    if problems:
        raise ProjectErrors(problems)
    chosen = [_here(service) for service in selected]
    for service in chosen:
        if not service.is_running():
            _progress(f"starting {service.kind} (log: {service.log_file})")
        service.start()
    _print([_row(service) for service in chosen], json)


@app.command()
def down(kinds: _Kinds = None, json: _Json = False) -> None:
    """Stop services (all by default). Their data stays; `up` uses it again."""
    chosen = _known_here(kinds)
    for service in chosen:
        if service.is_running():
            _progress(f"stopping {service.kind}")
        service.stop()
    _print([_row(service) for service in chosen], json)


@app.command()
def status(kinds: _Kinds = None, json: _Json = False) -> None:
    """Show the running services, their addresses and the settings for clients."""
    rows = [_row(service) for service in _known_here(kinds)]
    _print(rows, json)
    if not rows:
        _progress("no service was started here; for example: headrace services up kafka")


def _here(service: type[services.Service]) -> services.Service:
    return service(folder=Path(".headrace") / "services" / service.kind)


def _known_here(kinds: Sequence[str] | None) -> list[services.Service]:
    """Return the named services, or all that were ever started here."""
    candidates = [_here(service) for service in services.named(kinds or services.KINDS)]
    return [service for service in candidates if kinds or service.home.is_dir()]


def _row(service: services.Service) -> dict[str, object]:
    state = service.server.state() if service.is_running() else None
    return {
        "kind": service.kind,
        "state": "running" if state else "stopped",
        "address": service.address if state else None,
        "port": state.port if state else None,
        "pid": state.pid if state else None,
        "started_at": state.started_at if state else None,
        "env": service.env if state else {},
        "folder": str(service.home),
    }


def _progress(line: str) -> None:
    typer.echo(line, err=True)


def _print(rows: Sequence[Mapping[str, object]], json: bool) -> None:
    if json:
        typer.echo(dumps(rows, indent=2))
        return
    for row in rows:
        env = row.get("env")
        settings = " ".join(f"{name}={value}" for name, value in env.items()) if isinstance(env, dict) else ""
        typer.echo(f"{row['kind']:<10} {row['state']:<8} {row.get('address') or '':<16} {settings}".rstrip())
