"""Download the jars that Spark needs."""

from __future__ import annotations

from json import dumps
from typing import Annotated

import typer

from headrace.engine.spark.class_archive import build_archive
from headrace.engine.spark.jars import SetName, fetch
from headrace.engine.spark.java_helpers import compile_helpers


def jars(
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing unless it fails.")] = False,
    s3: Annotated[bool, typer.Option("--s3", help="Also those for state on an S3-compatible object store.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the jars as JSON.")] = False,
) -> None:
    """Fetch the pinned jars once, into the Python environment ($HEADRACE_JARS names another folder)."""
    sets: tuple[SetName, ...] = ("engine", "s3") if s3 else ("engine",)
    report = _say_nothing if quiet else _say
    paths = [path for name in sets for path in fetch(name, report=report)]
    compile_helpers(report)
    build_archive(report)
    if json:
        typer.echo(dumps([{"name": path.name, "path": str(path)} for path in paths], indent=2))
    elif not quiet:
        for folder in dict.fromkeys(path.parent for path in paths):
            typer.echo(f"{sum(path.parent == folder for path in paths)} jars in {folder}")


def _say(line: str) -> None:
    typer.echo(line, err=True)


def _say_nothing(_line: str) -> None:
    pass
