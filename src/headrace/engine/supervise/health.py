"""Looks into why a flow does not get on: its state folder, its disks, its sources and sinks."""

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
    """Knows the state folder again. A mount that is gone leaves an empty folder of the same name: writing there would
    begin every flow anew."""

    def __init__(self, state: StateDir) -> None:
        self._state = state
        self._known = self._identity()

    def problem(self) -> ProjectError | None:
        """Whether the folder is gone, is another one, or is no longer ours."""
        lost = self._state.fence.problem()
        if lost is not None or isinstance(self._state.root, ObjectPath):
            return lost
        found = self._identity()
        if self._known is None:
            self._known = found
        if found == self._known:
            return None
        gone = "is gone" if found is None else "is not the one that the engine was started on"
        return ProjectError(
            "state-missing",
            f"the state folder {self._state.root} {gone}",
            hint="bring it back, e.g. mount it again; the flows go on by themselves",
            exit_code=Exit.TRANSIENT,
        )

    def _identity(self) -> tuple[int, int] | None:
        if isinstance(self._state.root, ObjectPath):
            return None
        try:
            found = os.stat(self._state.root)
        except OSError:
            return None
        return found.st_dev, found.st_ino


class Health:
    """Questions about what a flow depends on. Each may take seconds: never asked by the thread that tends the flows."""

    def __init__(self, project: Project, state: StateDir) -> None:
        self._project = project
        self._state = state
        self.guard = StateGuard(state)

    def problem(self, flow: FlowPlan, generation: str | None) -> ProjectError | None:
        """The first thing that is missing, or None when all answers."""
        return (
            self.guard.problem()
            or self._lost_generation(flow, generation)
            or unwritable(self._state.root)
            or self._lake_problem(flow)
            or self._service_problem(flow)
        )

    def _lost_generation(self, flow: FlowPlan, generation: str | None) -> ProjectError | None:
        """A flow must go on with the checkpoint it had: without one Spark would begin at the beginning again."""
        if generation is None:
            return None
        generations = self._state.generations(flow.name)
        try:
            known = [one for one in (generations.current(), generations.candidate()) if one is not None]
        except OSError:
            known = []
        if any(one.id == generation and one.checkpoint_folder.is_dir() for one in known):
            return None
        return ProjectError(
            "state-missing",
            f"the checkpoint of flow '{flow.name}' (generation {generation}) is not in {self._state.root}",
            hint="bring the state folder back as it was; the flow goes on by itself",
            exit_code=Exit.TRANSIENT,
        )

    def _lake_problem(self, flow: FlowPlan) -> ProjectError | None:
        paths = [self._project.context.path(path) for path in lake_paths(step.sink for step in flow.sinks)]
        paths += [one.path for one in flow.all_inputs() if isinstance(one, LakeInput)]
        return next((found for path in paths if "://" not in path and (found := _no_room(Path(path)))), None)

    def _service_problem(self, flow: FlowPlan) -> ProjectError | None:
        parts: list[Source | Processor | Sink] = [stream.spec.source for stream in flow.streams()]
        parts += [step.processor for step in flow.steps()]
        for part in [*parts, *(step.sink for step in flow.sinks)]:
            try:
                part.check(self._project.context)
            except ProjectError as error:
                return error
        return None


def unwritable(folder: StatePath) -> ProjectError | None:
    """Try to keep a little in a folder: the only way to know."""
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
        with suppress(OSError):  # said above
            file.unlink(missing_ok=True)
    return None


def _no_room(folder: Path) -> ProjectError | None:
    """What can be known about a folder of others without leaving anything in it."""
    present = next(parent for parent in (folder, *folder.parents) if parent.exists())
    try:
        if os.statvfs(present).f_bavail == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if not os.access(present, os.W_OK):
            raise OSError(errno.EROFS, "it may not be written")
    except OSError as error:
        return _disk_error(folder, error)
    return None


def _disk_error(folder: StatePath, error: OSError) -> ProjectError:
    if error.errno in _FULL:
        hint = "make room; the flows go on by themselves"
        return ProjectError("disk-full", f"the disk of {folder} is full", hint=hint, exit_code=Exit.TRANSIENT)
    return ProjectError(
        "state-unwritable",
        f"{folder} cannot be written: {error.strerror}",
        hint="make it writable again; the flows go on by themselves",
        exit_code=Exit.TRANSIENT,
    )
