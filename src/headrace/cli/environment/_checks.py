"""The checks of `headrace doctor`. A check never raises: a failure is a result."""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from headrace.core.errors import ProjectError
from headrace.engine.spark.jars import OLDEST_JAVA, JarSet, java_version, require_jars, require_java

State = Literal["ok", "warn", "fail"]
_OLDEST_PYTHON = (3, 11)
_GIB = 2**30
_LITTLE_DISK, _TOO_LITTLE_DISK = 5 * _GIB, 1 * _GIB
_LITTLE_MEMORY = 2 * _GIB
_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?:\[[^\]]*\])?(?:==(?P<pin>[^;,\s]+))?[^;]*(?P<optional>;.*extra.*)?")


@dataclass(frozen=True)
class Result:
    """The result of one check, and how to fix a problem."""

    check: str
    state: State
    detail: str
    fix: str | None = None

    def to_json(self) -> dict[str, str | None]:
        """Return an entry of `doctor --json`."""
        return asdict(self)


def environment(state_folder: Path) -> Iterator[Result]:
    """Run the checks that do not depend on a project's streams and sinks."""
    yield _python()
    yield _guarded("java", _java)
    yield from _libraries()
    yield _guarded("jars", _jars)
    yield _memory()
    yield _loopback()
    yield from _state(state_folder)


def failed(check: str, error: ProjectError) -> Result:
    return Result(check, "fail", f"{error.message} [{error.code}]", error.hint)


def _guarded(check: str, look: Callable[[], str]) -> Result:
    try:
        return Result(check, "ok", look())
    except ProjectError as error:
        return failed(check, error)


def _python() -> Result:
    detail = f"Python {platform.python_version()} in {sys.prefix}"
    if sys.version_info[:2] < _OLDEST_PYTHON:
        oldest = ".".join(map(str, _OLDEST_PYTHON))
        return Result("python", "fail", detail, f"create an environment with Python {oldest} or newer")
    return Result("python", "ok", detail)


def _java() -> str:
    java = require_java()
    return f"Java {java_version(java)} ({java}), {OLDEST_JAVA} or newer is needed"


def _jars() -> str:
    paths = require_jars("engine")
    jars = JarSet.named("engine")
    jars.verify(jars.home)
    return f"{len(paths)} jars in {jars.home}, all as pinned"


def _libraries() -> Iterator[Result]:
    """Check the requirements of the package; a pinned one must have exactly that version."""
    present = []
    for text in metadata.requires("headrace") or []:
        requirement = _REQUIREMENT.match(text)
        if requirement is None or requirement["optional"]:
            continue
        name, pin = requirement["name"], requirement["pin"]
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield Result(name, "fail", "is not installed", f"pip install '{text}'")
            continue
        if pin and version != pin:
            yield Result(name, "fail", f"is version {version}, not {pin}", f"pip install '{text}'")
        elif pin:
            yield Result(name, "ok", f"version {version}")
        else:
            present.append(f"{name} {version}")
    yield Result("libraries", "ok", ", ".join(sorted(present)))


def _memory() -> Result:
    import psutil

    memory = psutil.virtual_memory()
    detail = f"{_gib(memory.available)} of {_gib(memory.total)} available"
    if memory.available < _LITTLE_MEMORY:
        return Result("memory", "warn", detail, "the engine needs up to 2 GiB: free memory, or lower spark.memory")
    return Result("memory", "ok", detail)


def _loopback() -> Result:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            return Result("loopback", "ok", f"a port can be opened on 127.0.0.1 (tried {server.getsockname()[1]})")
    except OSError as error:
        fix = "Spark's processes talk over 127.0.0.1: allow it in the firewall or sandbox"
        return Result("loopback", "fail", f"no port can be opened on 127.0.0.1: {error.strerror}", fix)


def _state(folder: Path) -> Iterator[Result]:
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            yield Result("state", "ok", f"{folder} can be written")
    except OSError as error:
        fix = f"give the user {os.getuid()} the right to write there, or set 'state:' to another folder"
        yield Result("state", "fail", f"{folder} cannot be written: {error.strerror}", fix)
    free = shutil.disk_usage(existing).free
    if free < _LITTLE_DISK:
        state: State = "fail" if free < _TOO_LITTLE_DISK else "warn"
        yield Result(
            "disk", state, f"{_gib(free)} free for {folder}", "free disk space, or set 'state:' to another disk"
        )
    else:
        yield Result("disk", "ok", f"{_gib(free)} free for {folder}")


def _gib(size: int) -> str:
    return f"{size / _GIB:.1f} GiB"
