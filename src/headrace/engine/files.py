"""Files that are there whole or not at all, and folders whose files are not taken away from under a reader."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def write_atomically(file: Path, content: bytes, *, durable: bool = True) -> None:
    """Write a small file so that readers see all of it or nothing, also after a crash when it is to be durable."""
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with scratch.open("wb") as out:
            out.write(content)
            out.flush()
            if durable:
                os.fsync(out.fileno())
        os.replace(scratch, file)
    except OSError:
        with suppress(OSError):  # on a full disk even half a file is too much
            scratch.unlink(missing_ok=True)
        raise


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """While its files are listed and read: nobody merges or removes them meanwhile. Any number may read at once."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        yield
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_SH)
        yield
    finally:
        os.close(handle)


@contextmanager
def changing(folder: Path) -> Iterator[bool]:
    """Whether the files of a folder may be merged or removed now: false while somebody reads them."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        yield False
        return
    try:
        yield True
    finally:
        os.close(handle)
