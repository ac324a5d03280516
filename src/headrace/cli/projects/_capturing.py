"""The capture process that `headrace run` starts for a project's tables. Its output goes to `logs/capture.log`."""

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
    """Keeps the capture process running, and reports tables whose source is unavailable."""

    about, name, module = "tables", "capture", "headrace.capture"
    failing, recovered = "tables are not captured", "tables are captured again"

    def __init__(self, project_ref: ProjectRef, project: Project, logs: Path) -> None:
        super().__init__(project_ref.environment(), logs / "capture.log")
        self._folder = tables_folder(project.context)
        self._tables = ", ".join(project.spec.tables)
        self._states: dict[str, str] = {}

    def look(self) -> str | None:
        """A line once the tables are captured. Reports changes of their states on the way."""
        groups = [group for group in read_groups(self._folder) if group["pid"] == self.child.pid]
        for group in groups:
            self._report_state(group)
        return f"tables are captured: {self._tables}" if groups else None

    def _report_state(self, group: dict[str, Any]) -> None:
        reason = group["reason"]
        text = f"{group['state']}: {reason['text']} [{reason['code']}]" if reason else group["state"]
        before, self._states[group["group"]] = self._states.get(group["group"]), text
        if before != text and (reason or (before or "").startswith("degraded")):
            self.note(self.about, f"{', '.join(group['tables'])}: {text}")
            printer.note(f"tables {', '.join(group['tables'])}: {text}")
