"""Where Spark puts what only this process needs, and the removal of what processes that were killed have left there.

A process that ends removes its own. After kill -9 nobody does: shuffle files, copies of state, unpacked libraries stay.
So each process has one folder for all of it, beside a lock that the operating system releases however the process ends.
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

from headrace.engine.state.locks import Fence, holder_of, holding

_JVM = "jvm.pid"


@cache
def scratch_folder() -> Path | None:
    """The folder of this process; None where there can be none, so that Spark's own places have to do."""
    root = Path(tempfile.gettempdir()) / f"headrace-{os.getuid()}"
    try:
        if not _is_ours(root):
            return None
        sweep(root)
        return _made(root)
    except OSError:
        return None


def remember_jvm(folder: Path, pid: int) -> None:
    """Note Spark's process: it may live on for some seconds without the one that started it."""
    (folder / _JVM).write_text(str(pid), encoding="utf-8")


def sweep(root: Path) -> None:
    """Remove the folders of processes that are dead, with what they have left beside them."""
    for lock in root.glob("*.lock"):
        folder = lock.with_suffix("")
        if holder_of(lock) is None and not _jvm_lives(folder):
            _remove(folder, lock)


def _is_ours(root: Path) -> bool:
    """The place for temporary files belongs to everyone: somebody else may have made a folder of this name."""
    root.mkdir(mode=0o700, exist_ok=True)
    about = root.lstat()
    others_write = about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not others_write


def _made(root: Path) -> Path:
    folder = root / f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
    lock = root / f"{folder.name}.lock"
    held = ExitStack()
    held.enter_context(holding(lock, Fence()))  # before the folder is there, so that nobody takes it for abandoned
    folder.mkdir(mode=0o700)
    owner = os.getpid()

    def end() -> None:
        if os.getpid() == owner:
            _remove(folder, lock)
            held.close()

    atexit.register(end)
    return folder


def _remove(folder: Path, lock: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if not folder.exists():
        with suppress(OSError):  # another process sweeps too
            lock.unlink()


def _jvm_lives(folder: Path) -> bool:
    """Whether Spark's process of this folder still runs; a process that has got its number since does not count."""
    import psutil

    try:
        process = psutil.Process(int((folder / _JVM).read_text(encoding="utf-8")))
        return any(str(folder) in word for word in process.cmdline())
    except (OSError, ValueError, psutil.Error):
        return False
