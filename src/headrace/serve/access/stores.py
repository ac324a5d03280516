"""The stores that a process of a node reads from: always those that the applier points to.

A store that is found to be damaged answers nothing from that moment on, here; the applier is told and builds it anew.
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

_LOOK_SECONDS = 0.05
"""How old the knowledge of which folder is served may be."""


@dataclass
class _SeenPointer:
    """An endpoint's pointer as it was last looked at."""

    pointer: Pointer
    mark: tuple[int, int] | None
    """The pointer file's inode and time of change: each write is a new file."""
    until: float


class Stores:
    """All endpoints of one node, for readers. Safe for threads; one per process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._seen: dict[str, _SeenPointer] = {}
        self._readers: dict[tuple[str, str], StoreReader] = {}
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """The endpoints that can be asked, or soon can be."""
        found = {home.parent.name for home in self._settings.store.glob("*/current.json")}
        return sorted(found | set(read_status(self._settings.store).endpoints) | set(self._settings.endpoints))

    def versions(self, name: str) -> list[int]:
        """The versions of an endpoint that can be asked for."""
        return sorted(self._pointer(name).folders)

    def served(self, name: str) -> int | None:
        """The version that those get who name none; None while there is none that can answer."""
        pointer = self._pointer(name)
        return None if pointer.folder(None) is None else pointer.version

    def reader(self, name: str, version: int | None = None) -> StoreReader:
        """The reader of an endpoint; a RequestError when there is no such endpoint, or none that can answer now."""
        folder = self._pointer(name).folder(version)
        if folder is None:
            raise self._absent(name, version)
        found = self._readers.get((name, folder))
        return self._open(name, folder) if found is None else found

    @contextmanager
    def view(self, name: str, version: int | None = None) -> Iterator[ReadTransaction]:
        """One moment of an endpoint's rows."""
        reader = self.reader(name, version)
        with self._guarded(name, reader), reader.transaction() as view:
            yield view

    @contextmanager
    def guard(self, name: str, version: int | None = None) -> Iterator[StoreReader]:
        """The reader of an endpoint, for those who open views of their own: damage is told and answered for them."""
        reader = self.reader(name, version)
        with self._guarded(name, reader):
            yield reader

    def damaged(self, name: str, reader: StoreReader, damage: StoreDamagedError) -> RequestError:
        """Answer no more from a store, and have it built anew; the error for whoever asked."""
        if reported_damage(reader.folder) is None:
            report_damage(reader.folder, str(damage))
        with self._lock:
            mine = self._readers.pop((name, reader.folder.name), None)
            self._seen.pop(name, None)
        if mine is not None:
            mine.close()
        return _hydrating(name)

    def status(self) -> dict[str, dict[str, Any]]:
        """What the applier says of each endpoint; those it has not met yet are hydrating."""
        said = read_status(self._settings.store).endpoints
        waiting = {"state": "hydrating", "error": None}
        return {name: said.get(name, dict(waiting)) for name in self.names()}

    def close(self) -> None:
        """Let go of all stores."""
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
            found = self._readers.get((name, folder))
            if found is not None:
                return found
            if reported_damage(path) is not None:
                raise _hydrating(name)
            try:
                reader = self._readers[name, folder] = StoreReader.open(path)
            except StoreDamagedError as damage:
                report_damage(path, str(damage))
                raise _hydrating(name) from damage
            except FileNotFoundError:  # put aside since the pointer was read
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
            self._let_go(name, set(seen.pointer.folders.values()))
        seen.until = now + _LOOK_SECONDS
        return seen.pointer

    def _let_go(self, name: str, wanted: set[str]) -> None:
        """Close what is no longer pointed to; its views end first."""
        with self._lock:
            over = [key for key in self._readers if key[0] == name and key[1] not in wanted]
            readers = [self._readers.pop(key) for key in over]
        for reader in readers:
            reader.close()

    def _absent(self, name: str, version: int | None) -> RequestError:
        known = self.names()
        if name not in known:
            return RequestError(
                "unknown-endpoint",
                f"there is no endpoint '{name}'",
                status=404,
                hint=did_you_mean(name, known, "endpoints"),
            )
        versions = self.versions(name)
        if version is not None and versions:
            there = ", ".join(f"v{one}" for one in versions)
            return RequestError(
                "unknown-endpoint", f"endpoint '{name}' has no version {version}", status=404, hint=f"there is: {there}"
            )
        return _hydrating(name)


def _mark(home: Path) -> tuple[int, int] | None:
    try:
        found = pointer_file(home).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _hydrating(name: str) -> RequestError:
    return RequestError(
        "hydrating",
        f"endpoint '{name}' has no copy here that can answer yet",
        status=503,
        hint="ask again in a moment, or another node; /health says how far it is",
    )
