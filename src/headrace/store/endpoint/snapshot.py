"""Snapshots of stores, on a disk or an object store: a node starts from one instead of reading the whole log.

A snapshot is a folder of compressed pieces and a manifest, written last, with their checksums. An incomplete or damaged
snapshot is skipped in favour of the one before it.
"""

from __future__ import annotations

import hashlib
import shutil
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa

from headrace.core.endpoints import Endpoint
from headrace.core.files.state_files import (
    StatePath,
    atomic_folder,
    in_order,
    make_durable,
    remove_atomically,
    write_atomically,
)
from headrace.store.endpoint.reader import StoreReader
from headrace.store.endpoint.writer import StoreWriter
from headrace.store.lmdb.errors import StoreDamagedError
from headrace.store.lmdb.pages import check_pages
from headrace.store.rows.layout import FILE

MANIFEST = "snapshot.json"
_PIECE = 16 << 20
_COMPRESSION = "zstd"


class SnapshotPiece(msgspec.Struct, frozen=True):
    """A part of the store's file."""

    name: str
    size: int
    """Before compression."""
    sha256: str
    """Of the compressed piece."""


class SnapshotManifest(msgspec.Struct, frozen=True):
    """The description of a snapshot."""

    endpoint: dict[str, Any]
    position: int
    version: int
    rows: int
    size: int
    pieces: list[SnapshotPiece]


@dataclass(frozen=True)
class StoreSnapshot:
    """An existing snapshot."""

    folder: StatePath
    manifest: SnapshotManifest

    @property
    def position(self) -> int:
        """The newest segment of the log that it contains."""
        return self.manifest.position


class Snapshots:
    """The snapshots of a project's endpoints."""

    def __init__(self, root: StatePath) -> None:
        self._root = root

    def save(self, writer: StoreWriter) -> StoreSnapshot:
        """Save the current state while the store stays in use. A damaged store is not saved: StoreDamagedError."""
        scratch = writer.folder.with_name(f".{writer.folder.name}.{uuid.uuid4().hex[:8]}")
        try:
            writer.copy(scratch)
            position, version, rows = _checked(scratch, writer.endpoint)
            folder = self._endpoint_folder(writer.endpoint) / f"{position:012}-{uuid.uuid4().hex[:8]}"
            with atomic_folder(folder) as draft, (scratch / FILE).open("rb") as source:
                pieces = [_put(draft, number, data) for number, data in enumerate(_read(source))]
                size = sum(piece.size for piece in pieces)
                manifest = SnapshotManifest(writer.endpoint.to_json(), position, version, rows, size, pieces)
                write_atomically(draft / MANIFEST, msgspec.json.encode(manifest))
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return StoreSnapshot(folder, manifest)

    def newest_first(self, endpoint: Endpoint) -> list[StoreSnapshot]:
        snapshots = []
        for folder in reversed(self._folders(endpoint)):
            with suppress(FileNotFoundError, NotADirectoryError, msgspec.MsgspecError):
                manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=SnapshotManifest)
                if Endpoint.from_json(manifest.endpoint).fingerprint == endpoint.fingerprint:
                    snapshots.append(StoreSnapshot(folder, manifest))
        return snapshots

    def newest(self, endpoint: Endpoint) -> StoreSnapshot | None:
        """The newest snapshot. It is checked only when it is restored."""
        return next(iter(self.newest_first(endpoint)), None)

    def restore(self, endpoint: Endpoint, into: Path) -> StoreSnapshot | None:
        """Create a store from the newest intact snapshot, in a new folder; None: no intact snapshot exists."""
        for snapshot in self.newest_first(endpoint):
            draft = into.with_name(f".{into.name}.{uuid.uuid4().hex[:8]}")
            try:
                _fetch(snapshot, draft)
                _checked(draft, endpoint)
                make_durable(draft)
                draft.replace(into)
                return snapshot
            except (StoreDamagedError, FileNotFoundError):
                continue
            finally:
                shutil.rmtree(draft, ignore_errors=True)
        return None

    def prune(self, endpoint: Endpoint, keep: int) -> int:
        """Remove all but the newest; returns how many were removed."""
        retained = {str(snapshot.folder) for snapshot in self.newest_first(endpoint)[:keep]}
        removed = [folder for folder in self._folders(endpoint) if str(folder) not in retained]
        for folder in removed:
            remove_atomically(folder, MANIFEST)
        return len(removed)

    def _endpoint_folder(self, endpoint: Endpoint) -> StatePath:
        return self._root / endpoint.name / f"v{endpoint.version}"

    def _folders(self, endpoint: Endpoint) -> list[StatePath]:
        try:
            folders = in_order(self._endpoint_folder(endpoint).iterdir())
        except FileNotFoundError:
            return []
        return [folder for folder in folders if not folder.name.startswith(".")]


def _read(source: BinaryIO) -> Iterator[bytes]:
    while data := source.read(_PIECE):
        yield data


def _put(draft: StatePath, number: int, data: bytes) -> SnapshotPiece:
    packed = pa.compress(data, codec=_COMPRESSION, asbytes=True)
    piece = SnapshotPiece(f"{number:06}.zst", len(data), hashlib.sha256(packed).hexdigest())
    write_atomically(draft / piece.name, packed, durable=False)
    return piece


def _fetch(snapshot: StoreSnapshot, draft: Path) -> None:
    draft.mkdir(parents=True)
    with (draft / FILE).open("wb") as target:
        for piece in snapshot.manifest.pieces:
            packed = (snapshot.folder / piece.name).read_bytes()
            if hashlib.sha256(packed).hexdigest() != piece.sha256:
                raise StoreDamagedError(f"the checksum of {snapshot.folder / piece.name} does not match")
            target.write(pa.decompress(packed, decompressed_size=piece.size, codec=_COMPRESSION, asbytes=True))
        if target.tell() != snapshot.manifest.size:
            raise StoreDamagedError(f"{snapshot.folder} is incomplete")


def _checked(folder: Path, endpoint: Endpoint) -> tuple[int, int, int]:
    """Position, version and number of rows of a store, after checking it and its endpoint."""
    check_pages(folder / FILE)
    reader = StoreReader.open(folder)
    try:
        if reader.endpoint.fingerprint != endpoint.fingerprint or reader.endpoint.indexes != endpoint.indexes:
            raise StoreDamagedError(f"{folder} holds another definition of '{endpoint.name}'")
        with reader.transaction() as transaction:
            transaction.check()
            return transaction.position, transaction.version, transaction.rows
    finally:
        reader.close()
