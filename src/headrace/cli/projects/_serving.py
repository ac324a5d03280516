"""The serve node that `headrace run` starts next to its engine. Its output goes to `logs/serve.log`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.projects._child_processes import SupervisedChild
from headrace.core.capabilities import endpoint_of
from headrace.core.runtime.lazy import lazy_modules
from headrace.serve.base.status import read_node

if TYPE_CHECKING:
    from headrace.plan.model import Plan
    from headrace.project.loader import Project
    from headrace.project.project_ref import ProjectRef
    from headrace.serve import node as serve_node
    from headrace.serve.base import settings as base_settings
else:
    base_settings, serve_node = lazy_modules("headrace.serve.base.settings", "headrace.serve.node")


def wants_serving(project: Project, plan: Plan) -> bool:
    """Whether serving is enabled, and a running flow writes an endpoint or callers push to a table or stream."""
    sinks = (step.sink for flow in plan.flows for step in flow.sinks)
    settings = base_settings.Settings.of(project)
    has_work = any(endpoint_of(sink) is not None for sink in sinks) or bool(settings.tables or settings.streams)
    return project.spec.serve.enabled and has_work


class Serving(SupervisedChild):
    """Keeps a serve node running."""

    about, name, module = "serve", "serve node", "headrace.serve.node"
    failing, recovered = "endpoints are not served", "endpoints are served again"

    def __init__(self, project_ref: ProjectRef, project: Project, logs: Path) -> None:
        super().__init__(project_ref.environment(), logs / "serve.log")
        self._settings = base_settings.Settings.of(project)

    def look(self) -> str | None:
        """The addresses of the node, once it answers."""
        node = read_node(self._settings.store)
        if node is None or node["pid"] != self.child.pid or node["http"] is None:
            return None
        return "\n".join(serve_node.welcome(self._settings, node["http"], node["grpc"]))
