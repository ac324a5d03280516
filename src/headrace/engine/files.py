"""Files that are there whole or not at all, and locks that the operating system releases even after kill -9."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

_ASKING_SECONDS = 0.3
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


def write_atomically(file: Path, content: bytes, *, durable: bool = True, private: bool = False) -> None:
    """Write a small file so that readers see all of it or nothing, also after a crash when it is to be durable.

    Nobody else can read one that is private.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(scratch, _WRITE, 0o600 if private else 0o666), "wb") as out:
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


class HeldError(Exception):
    """A lock file belongs to another process, whose id is the argument; 0 when it has not said it yet."""


@contextmanager
def holding(file: Path) -> Iterator[None]:
    """Hold a lock file, which then has this process's id in it; HeldError when another process does."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a+", encoding="utf-8") as held:
        until = time.monotonic() + _ASKING_SECONDS
        while (holder := _locked_by_other(held, fcntl.LOCK_EX)) is not None:
            # somebody who only asks who holds it lets go at once; another holder may not do so for weeks
            if time.monotonic() > until:
                raise HeldError(holder)
            time.sleep(0.02)
        held.truncate(0)
        held.write(str(os.getpid()))
        held.flush()
        yield


def holder_of(file: Path) -> int | None:
    """The process that holds a lock file; None when nobody does."""
    try:
        with file.open(encoding="utf-8") as held:
            return _locked_by_other(held, fcntl.LOCK_SH)
    except OSError:
        return None


def _locked_by_other(file: IO[str], kind: int) -> int | None:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        return int(file.read().strip() or 0)
    return None
