"""`headrace jars`: fetch the jars that Spark needs."""

from __future__ import annotations

from json import dumps
from typing import Annotated

import typer

from headrace.engine.jars import fetch


def jars(
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing unless it fails.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the jars as JSON.")] = False,
) -> None:
    """Fetch the pinned jars once, into the Python environment ($HEADRACE_JARS names another folder)."""
    paths = fetch("engine", report=(lambda _: None) if quiet else (lambda line: typer.echo(line, err=True)))
    if json:
        typer.echo(dumps([{"name": path.name, "path": str(path)} for path in paths], indent=2))
    elif not quiet:
        typer.echo(f"{len(paths)} jars in {paths[0].parent}")
