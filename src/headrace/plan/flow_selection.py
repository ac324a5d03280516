"""Checks that a selected flow exists and has something to run."""

from __future__ import annotations

from headrace.core.errors import ProjectError, unknown_flow
from headrace.project.loader import Project


def check_runnable(project: Project, name: str) -> None:
    """Refuse a flow that does not exist or has no sinks."""
    if name not in project.spec.flows:
        raise unknown_flow(name, project.spec.flows)
    if not project.spec.flows[name].sinks:
        raise ProjectError(
            "no-sinks",
            f"flow '{name}' has no sinks, so there is nothing to run",
            where=project.origin("flows", name),
            hint="add a sink, e.g. sinks: [console], or run a flow that reads it",
        )
