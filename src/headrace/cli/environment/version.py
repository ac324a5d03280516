"""Print the versions of Headrace and its main dependencies."""

from __future__ import annotations

import platform
from importlib import metadata

from headrace import __version__
from headrace.cli.terminal.output import printer
from headrace.cli.terminal.project_args import Json
from headrace.core.errors import ProjectError
from headrace.engine.spark.jars import java_version


def version(json: Json = False) -> None:
    """Print the versions of headrace, Python, PySpark and Java."""
    versions = {
        "headrace": __version__,
        "python": platform.python_version(),
        "pyspark": _installed("pyspark"),
        "java": _java(),
    }
    if json:
        printer.document(versions)
        return
    for name, number in versions.items():
        printer.data(f"{name:<9} {number or '–'}")


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _java() -> str | None:
    try:
        return str(java_version())
    except ProjectError:
        return None  # `doctor` says why
