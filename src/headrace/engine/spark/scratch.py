"""The scratch folder of a process: Spark's temporary files, and the removal of those of killed processes.

A process removes its folder when it exits. After `kill -9` shuffle files, copies of state and unpacked libraries would
stay. So each process has one folder for all of them and a lock file next to it, which the operating system releases
however the process ends.
"""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import tempfile
import uuid
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path

import psutil

from headrace.engine.state.locks import Fence, holder_of, holding

_JVM = "jvm.pid"


@cache
def scratch_folder() -> Path | None:
    """The folder of this process; None if it cannot be created, and Spark then uses its default folders."""
    root = Path(tempfile.gettempdir()) / f"headrace-{os.getuid()}"
    try:
        if not _is_ours(root):
            return None
        sweep(root)
        return _create(root)
    except OSError:
        return None


def record_jvm(folder: Path, pid: int) -> None:
    """Record Spark's process, which can outlive the process that started it by some seconds."""
    (folder / _JVM).write_text(str(pid), encoding="utf-8")


def sweep(root: Path) -> None:
    """Remove the folders and lock files of dead processes."""
    for lock in root.glob("*.lock"):
        folder = lock.with_suffix("")
        if holder_of(lock) is None and not _jvm_lives(folder):
            _remove(folder, lock)


def _is_ours(root: Path) -> bool:
    """Another user can have created a folder with this name, as the parent is shared by all users."""
    root.mkdir(mode=0o700, exist_ok=True)
    status = root.lstat()
    others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not others_write


def _create(root: Path) -> Path:
    folder = root / f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
    lock = root / f"{folder.name}.lock"
    lock_hold = ExitStack()
    # locked before the folder exists, so that another process does not remove it
    lock_hold.enter_context(holding(lock, Fence()))
    folder.mkdir(mode=0o700)
    owner = os.getpid()

    def end() -> None:
        if os.getpid() == owner:
            _remove(folder, lock)
            lock_hold.close()

    atexit.register(end)
    return folder


def _remove(folder: Path, lock: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if not folder.exists():
        with suppress(OSError):  # another process may remove it at the same time
            lock.unlink()


def _jvm_lives(folder: Path) -> bool:
    """Whether Spark's process still runs; another process may have got its pid since."""
    try:
        process = psutil.Process(int((folder / _JVM).read_text(encoding="utf-8")))
        return any(str(folder) in argument for argument in process.cmdline())
    except (OSError, ValueError, psutil.Error):
        return False
