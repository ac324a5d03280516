"""Print the JSON schema of headrace.yaml, for editors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.terminal.output import printer
from headrace.core.runtime.lazy import lazy_modules

if TYPE_CHECKING:
    from headrace.project import json_schema
else:
    json_schema = lazy_modules("headrace.project.json_schema")


def schema(
    json: Annotated[bool, typer.Option("--json", help="Changes nothing: it always is JSON.")] = False,  # noqa: ARG001
) -> None:
    """Print the JSON schema of headrace.yaml, for editors.

    Write it to a file and name it in the first line of headrace.yaml:
    # yaml-language-server: $schema=headrace.schema.json
    """
    printer.document(json_schema.project_schema())
