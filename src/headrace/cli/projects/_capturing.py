"""The capture that `headrace run` starts beside its engine for a project's tables. What it prints is in
`logs/capture.log`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.projects._child_processes import SupervisedChild
from headrace.cli.terminal.output import printer
from headrace.log.tablestatus import read_groups, tables_folder

if TYPE_CHECKING:
    from headrace.project.loader import Project
    from headrace.project.project_ref import ProjectRef


class Capturing(SupervisedChild):
    """Keeps the capture of a project's tables alive, and says so when a table is away."""

    about, name, module = "tables", "capture", "headrace.capture"
    trouble, mended = "tables are not followed", "tables are followed again"

    def __init__(self, given: ProjectRef, project: Project, logs: Path) -> None:
        super().__init__(given.environment(), logs / "capture.log")
        self._folder = tables_folder(project.context)
        self._tables = ", ".join(project.spec.tables)
        self._states: dict[str, str] = {}

    def look(self) -> str | None:
        """That it follows the tables, once it does; changes of their states are told on the way."""
        mine = [said for said in read_groups(self._folder) if said["pid"] == self.child.pid]
        for said in mine:
            self._tell_state(said)
        return f"tables are followed: {self._tables}" if mine else None

    def _tell_state(self, said: dict[str, Any]) -> None:
        reason = said["reason"]
        words = f"{said['state']}: {reason['text']} [{reason['code']}]" if reason else said["state"]
        before, self._states[said["group"]] = self._states.get(said["group"]), words
        if before != words and (reason or (before or "").startswith("degraded")):
            self.note(self.about, f"{', '.join(said['tables'])}: {words}")
            printer.note(f"tables {', '.join(said['tables'])}: {words}")
