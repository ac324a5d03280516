"""`headrace schema`: the JSON schema of headrace.yaml."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.terminal.output import printer


def schema(
    json: Annotated[bool, typer.Option("--json", help="Changes nothing: it always is JSON.")] = False,  # noqa: ARG001
) -> None:
    """Print the JSON schema of headrace.yaml, for editors.

    Write it to a file and name it in the first line of headrace.yaml:
    # yaml-language-server: $schema=headrace.schema.json
    """
    from headrace.project.json_schema import project_schema

    printer.document(project_schema())
