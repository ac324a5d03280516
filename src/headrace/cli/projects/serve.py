"""`headrace serve`: answer requests for a project's endpoints, from this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.terminal.engines import seconds_of
from headrace.cli.terminal.output import printer
from headrace.cli.terminal.project_args import Json, Name, Overrides, Profile, ProjectOption, load_project, only_project
from headrace.cli.terminal.signals import stop_on_signal

if TYPE_CHECKING:
    from headrace.serve.node import Node


def serve(
    name: Name = None,
    project: ProjectOption = None,
    profile: Profile = None,
    overrides: Overrides = None,
    port: Annotated[
        int | None, typer.Option("--port", metavar="PORT", min=0, max=65535, help="Instead of 'serve.port'.")
    ] = None,
    for_: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="End by itself after this time, e.g. 30s.")
    ] = None,
    json: Json = False,
) -> None:
    """Serve a project's endpoints over REST, gRPC and live events: a node of its own, beside any number of others.

    It follows the endpoints' logs into a local store and answers from that; a new node begins with the newest
    snapshot. It needs no Spark and no engine. Ctrl-C lets requests under way finish. With --json, the addresses are
    printed as one line when it answers.
    """
    from headrace.serve.base.settings import ServeProjectRef, Settings
    from headrace.serve.node import Node

    path = only_project(name, project)
    seconds = None if for_ is None else seconds_of("--for", for_)
    given = ServeProjectRef(path, profile, tuple(overrides or ()))
    if port is not None:
        given = given.over(port=port)
    settings = Settings.of(load_project(path, profile, given.overrides))
    with stop_on_signal() as stopping:
        Node(given, settings, printer.note, lambda node: _say(node, json)).run(stopping, seconds)
    printer.note("stopped")


def _say(node: Node, json: bool) -> None:
    from headrace.serve.node import welcome

    if json:
        printer.line({"project": node.settings.project, **node.urls})
        return
    for line in welcome(node.settings, node.urls["http"], node.urls["grpc"]):
        printer.note(line)
