"""Serve a project's endpoints over REST, gRPC and live events."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.terminal.engines import seconds_of
from headrace.cli.terminal.output import printer
from headrace.cli.terminal.project_args import Json, Name, ProjectTarget, project_options
from headrace.cli.terminal.signals import stop_on_signal
from headrace.core.lazy import lazy_modules

if TYPE_CHECKING:
    from headrace.serve import node as serve_node
    from headrace.serve.base import settings as base_settings
    from headrace.serve.node import Node
else:
    base_settings, serve_node = lazy_modules("headrace.serve.base.settings", "headrace.serve.node")


@project_options(Name)
def serve(
    target: ProjectTarget,
    port: Annotated[
        int | None, typer.Option("--port", metavar="PORT", min=0, max=65535, help="Instead of 'serve.port'.")
    ] = None,
    for_: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="End by itself after this time, e.g. 30s.")
    ] = None,
    json: Json = False,
) -> None:
    """Serve a project's endpoints over REST, gRPC and live events: one node, next to any number of others.

    It applies the endpoints' logs to a local store and answers from the store. A new node starts from the newest
    snapshot. It needs no Spark and no engine. Ctrl-C finishes the running requests and stops. With --json, the URLs are
    printed as one line when the node is ready.
    """
    seconds = None if for_ is None else seconds_of("--for", for_)
    project_ref = base_settings.ServeProjectRef(target.path, target.profile, target.overrides)
    if port is not None:
        project_ref = project_ref.over(port=port)
    settings = base_settings.Settings.of(replace(target, overrides=tuple(project_ref.overrides)).load())
    with stop_on_signal() as stopping:
        serve_node.Node(project_ref, settings, printer.note, lambda node: _print_urls(node, json)).run(
            stopping, seconds
        )
    printer.note("stopped")


def _print_urls(node: Node, json: bool) -> None:
    if json:
        printer.line({"project": node.settings.project, **node.urls})
        return
    for line in serve_node.welcome(node.settings, node.urls["http"], node.urls["grpc"]):
        printer.note(line)
