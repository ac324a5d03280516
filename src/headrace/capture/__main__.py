"""The capture of a project, as a process that ends with the one that started it: `python -m headrace.capture`."""

from __future__ import annotations

import sys
import threading
import time

from headrace.capture.worker import CaptureWorker
from headrace.core.errors import Exit, ProjectError
from headrace.core.files.lock import hold_lock
from headrace.core.processes.lifeline import STOP_SECONDS, run_until_stopped
from headrace.log.tablestatus import LOCK, tables_folder
from headrace.project.loader import Project
from headrace.project.project_ref import ProjectRef
from headrace.project.tables import groups


def capture(project: Project, stopping: threading.Event) -> None:
    """Capture all tables until `stopping` is set."""
    folder = tables_folder(project.context)
    restart, redact = project.spec.restart, project.secrets.redact
    with hold_lock(folder / LOCK, _in_use, timeout=STOP_SECONDS):
        workers = [
            CaptureWorker(group, tables, project.context, folder, restart, redact)
            for group, tables in groups(project.spec.tables).items()
        ]
        for worker in workers:
            worker.start()
        stopping.wait()
        for worker in workers:
            worker.stop()
        deadline = time.monotonic() + STOP_SECONDS
        for worker in workers:
            worker.join(max(0.0, deadline - time.monotonic()))


def _in_use(pid: int) -> ProjectError:
    return ProjectError(
        "capture-in-use",
        f"another process (pid {pid or 'unknown'}) captures the tables of this state folder",
        hint="stop it first, or choose another folder with --set state=DIR",
        exit_code=Exit.CONFLICT,
    )


if __name__ == "__main__":
    sys.exit(run_until_stopped(lambda stopping: capture(ProjectRef.here().project(), stopping)))
