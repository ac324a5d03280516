"""Health checks: finds out why a flow makes no progress (state folder, disks, sources, sinks)."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from headrace.core.capabilities import lake_paths
from headrace.core.errors import Exit, ProjectError
from headrace.core.files.objects import ObjectPath
from headrace.core.files.state_files import StatePath
from headrace.core.processor import Processor
from headrace.core.sink import Sink
from headrace.core.source import Source
from headrace.engine.state.state import StateDir
from headrace.plan.model import FlowPlan, LakeInput
from headrace.project.loader import Project

_HIDDEN = ".probe"
_FULL = (errno.ENOSPC, errno.EDQUOT)


class StateGuard:
    """Recognises the state folder.

    A lost mount leaves an empty folder with the same name. Flows that wrote there would start from the beginning.
    """

    def __init__(self, state: StateDir) -> None:
        self._state = state
        self._known = self._identity()

    def problem(self) -> ProjectError | None:
        """An error if the folder is missing, is another folder or belongs to another engine."""
        lost = self._state.fence.problem()
        if lost is not None or isinstance(self._state.root, ObjectPath):
            return lost
        identity = self._identity()
        if self._known is None:
            self._known = identity
        if identity == self._known:
            return None
        what = "is missing" if identity is None else "is not the folder with which the engine was started"
        return ProjectError(
            "state-missing",
            f"the state folder {self._state.root} {what}",
            hint="restore it, e.g. mount it again; the flows resume automatically",
            exit_code=Exit.TRANSIENT,
        )

    def _identity(self) -> tuple[int, int] | None:
        if isinstance(self._state.root, ObjectPath):
            return None
        try:
            status = os.stat(self._state.root)
        except OSError:
            return None
        return status.st_dev, status.st_ino


class Health:
    """Checks everything a flow depends on. A check may take seconds, so it runs in the background."""

    def __init__(self, project: Project, state: StateDir) -> None:
        self._project = project
        self._state = state
        self.guard = StateGuard(state)

    def problem(self, flow: FlowPlan, generation: str | None) -> ProjectError | None:
        """The first dependency that is unavailable; None if all are available."""
        return (
            self.guard.problem()
            or self._lost_generation(flow, generation)
            or check_writable(self._state.root)
            or self._lake_problem(flow)
            or self._service_problem(flow)
        )

    def _lost_generation(self, flow: FlowPlan, generation: str | None) -> ProjectError | None:
        """A flow must resume from its checkpoint: without it Spark would start from the beginning."""
        if generation is None:
            return None
        generations = self._state.generations(flow.name)
        try:
            known = [each for each in (generations.current(), generations.candidate()) if each is not None]
        except OSError:
            known = []
        if any(each.id == generation and each.checkpoint_folder.is_dir() for each in known):
            return None
        return ProjectError(
            "state-missing",
            f"the checkpoint of flow '{flow.name}' (generation {generation}) is not in {self._state.root}",
            hint="restore the state folder; the flow resumes automatically",
            exit_code=Exit.TRANSIENT,
        )

    def _lake_problem(self, flow: FlowPlan) -> ProjectError | None:
        paths = [self._project.context.path(path) for path in lake_paths(step.sink for step in flow.sinks)]
        paths += [item.path for item in flow.all_inputs() if isinstance(item, LakeInput)]
        return next((error for path in paths if "://" not in path and (error := _disk_problem(Path(path)))), None)

    def _service_problem(self, flow: FlowPlan) -> ProjectError | None:
        parts: list[Source | Processor | Sink] = [stream.spec.source for stream in flow.streams()]
        parts += [step.processor for step in flow.steps()]
        for part in [*parts, *(step.sink for step in flow.sinks)]:
            try:
                part.check(self._project.context)
            except ProjectError as error:
                return error
        return None


def check_writable(folder: StatePath) -> ProjectError | None:
    """Write a small file to a folder, which is the only reliable test; an error if that fails."""
    file = folder / f"{_HIDDEN}.{os.getpid()}"
    try:
        if isinstance(file, ObjectPath):
            file.put(b"\0")
            return None
        with file.open("wb") as out:
            out.write(b"\0" * 8192)
            out.flush()
            os.fsync(out.fileno())
    except OSError as error:
        return _disk_error(folder, error)
    finally:
        with suppress(OSError):  # reported above
            file.unlink(missing_ok=True)
    return None


def _disk_problem(folder: Path) -> ProjectError | None:
    """What can be checked without writing to a folder that the engine does not own."""
    present = next(parent for parent in (folder, *folder.parents) if parent.exists())
    try:
        if os.statvfs(present).f_bavail == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if not os.access(present, os.W_OK):
            raise OSError(errno.EROFS, "no write permission")
    except OSError as error:
        return _disk_error(folder, error)
    return None


def _disk_error(folder: StatePath, error: OSError) -> ProjectError:
    if error.errno in _FULL:
        hint = "free some space; the flows resume automatically"
        return ProjectError("disk-full", f"the disk of {folder} is full", hint=hint, exit_code=Exit.TRANSIENT)
    return ProjectError(
        "state-unwritable",
        f"{folder} cannot be written: {error.strerror}",
        hint="make it writable again; the flows resume automatically",
        exit_code=Exit.TRANSIENT,
    )
