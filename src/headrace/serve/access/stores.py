"""The stores that a process of a node reads: always those that the applier's pointers name. No row filter here.

A damaged store is not read again by this process; the applier is informed and rebuilds it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.core.errors import RequestError, did_you_mean
from headrace.serve.base.settings import Settings
from headrace.serve.base.status import read_status
from headrace.serve.replica.pointers import Pointer, pointer_file, read_pointer, report_damage, reported_damage
from headrace.store.endpoint.reader import ReadTransaction, StoreReader
from headrace.store.lmdb.errors import StoreDamagedError

_CHECK_SECONDS = 0.05
"""How long a pointer is used without reading its file again."""


@dataclass
class _SeenPointer:
    """An endpoint's pointer as last read."""

    pointer: Pointer
    mark: tuple[int, int] | None
    """The inode and modification time of the pointer file: each write creates a new file."""
    until: float


class Stores:
    """All endpoints of one node, for readers. Thread-safe; one per process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._seen: dict[str, _SeenPointer] = {}
        self._readers: dict[tuple[str, str], StoreReader] = {}
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """The endpoints that are served, or soon will be."""
        named = {home.parent.name for home in self._settings.store.glob("*/current.json")}
        return sorted(named | set(read_status(self._settings.store).endpoints) | set(self._settings.endpoints))

    def versions(self, name: str) -> list[int]:
        """The available versions of an endpoint."""
        return sorted(self._pointer(name).folders)

    def served(self, name: str) -> int | None:
        """The version served by default; None while no version can answer."""
        pointer = self._pointer(name)
        return None if pointer.folder(None) is None else pointer.version

    def reader(self, name: str, version: int | None = None) -> StoreReader:
        """The reader of an endpoint; RequestError when the endpoint does not exist or cannot answer now."""
        folder = self._pointer(name).folder(version)
        if folder is None:
            raise self._absent(name, version)
        reader = self._readers.get((name, folder))
        return self._open(name, folder) if reader is None else reader

    @contextmanager
    def transaction(self, name: str, version: int | None = None) -> Iterator[ReadTransaction]:
        reader = self.reader(name, version)
        with self._guarded(name, reader), reader.transaction() as transaction:
            yield transaction

    @contextmanager
    def guard(self, name: str, version: int | None = None) -> Iterator[StoreReader]:
        """The reader of an endpoint, for callers with their own transactions: damage is reported and translated."""
        reader = self.reader(name, version)
        with self._guarded(name, reader):
            yield reader

    def damaged(self, name: str, reader: StoreReader, damage: StoreDamagedError) -> RequestError:
        """Stop reading a store and have it rebuilt; returns the error for the caller."""
        if reported_damage(reader.folder) is None:
            report_damage(reader.folder, str(damage))
        with self._lock:
            own = self._readers.pop((name, reader.folder.name), None)
            self._seen.pop(name, None)
        if own is not None:
            own.close()
        return _hydrating(name)

    def status(self) -> dict[str, dict[str, Any]]:
        """The applier's status of each endpoint; endpoints that it does not know yet are hydrating."""
        reported = read_status(self._settings.store).endpoints
        waiting = {"state": "hydrating", "error": None}
        return {name: reported.get(name, dict(waiting)) for name in self.names()}

    def close(self) -> None:
        with self._lock:
            for reader in self._readers.values():
                reader.close()
            self._readers.clear()

    @contextmanager
    def _guarded(self, name: str, reader: StoreReader) -> Iterator[None]:
        try:
            yield
        except StoreDamagedError as damage:
            raise self.damaged(name, reader, damage) from damage

    def _open(self, name: str, folder: str) -> StoreReader:
        path = self._settings.store / name / folder
        with self._lock:
            opened = self._readers.get((name, folder))
            if opened is not None:
                return opened
            if reported_damage(path) is not None:
                raise _hydrating(name)
            try:
                reader = self._readers[name, folder] = StoreReader.open(path)
            except StoreDamagedError as damage:
                report_damage(path, str(damage))
                raise _hydrating(name) from damage
            except FileNotFoundError:  # moved since the pointer was read
                self._seen.pop(name, None)
                raise _hydrating(name) from None
            return reader

    def _pointer(self, name: str) -> Pointer:
        now = time.monotonic()
        seen = self._seen.get(name)
        if seen is not None and now < seen.until:
            return seen.pointer
        home = self._settings.store / name
        mark = _mark(home)
        if seen is None or mark != seen.mark:
            seen = self._seen[name] = _SeenPointer(read_pointer(home), mark, now)
            self._close_others(name, set(seen.pointer.folders.values()))
        seen.until = now + _CHECK_SECONDS
        return seen.pointer

    def _close_others(self, name: str, current: set[str]) -> None:
        """Close readers of folders that the pointer no longer names; their open transactions end first."""
        with self._lock:
            obsolete = [key for key in self._readers if key[0] == name and key[1] not in current]
            readers = [self._readers.pop(key) for key in obsolete]
        for reader in readers:
            reader.close()

    def _absent(self, name: str, version: int | None) -> RequestError:
        known = self.names()
        if name not in known:
            return RequestError(
                "unknown-endpoint",
                f"unknown endpoint '{name}'",
                status=404,
                hint=did_you_mean(name, known, "endpoints"),
            )
        versions = self.versions(name)
        if version is not None and versions:
            available = ", ".join(f"v{number}" for number in versions)
            return RequestError(
                "unknown-endpoint",
                f"endpoint '{name}' has no version {version}",
                status=404,
                hint=f"available: {available}",
            )
        return _hydrating(name)


def _mark(home: Path) -> tuple[int, int] | None:
    try:
        stat = pointer_file(home).stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns


def _hydrating(name: str) -> RequestError:
    return RequestError(
        "hydrating",
        f"endpoint '{name}' has no store on this node that can answer yet",
        status=503,
        hint="retry in a moment, or use another node; /health reports the progress",
    )
