"""Snapshots of stores, on a disk or an object store: what a node begins with instead of the whole log.

A snapshot is a folder of compressed pieces and, written last, a file that lists them with their checksums. One that is
half there or damaged is passed over for the one before it.
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
    """Of what it holds, before compression."""
    sha256: str
    """Of what is stored."""


class SnapshotManifest(msgspec.Struct, frozen=True):
    """What a snapshot says about itself."""

    endpoint: dict[str, Any]
    position: int
    version: int
    rows: int
    size: int
    pieces: list[SnapshotPiece]


@dataclass(frozen=True)
class StoreSnapshot:
    """One that is there."""

    folder: StatePath
    manifest: SnapshotManifest

    @property
    def position(self) -> int:
        """The newest segment of the log that is in it."""
        return self.manifest.position


class Snapshots:
    """The snapshots of a project's endpoints."""

    def __init__(self, root: StatePath) -> None:
        self._root = root

    def save(self, writer: StoreWriter) -> StoreSnapshot:
        """Make one of how the store is now, while it goes on. What is damaged is not saved: StoreDamagedError."""
        scratch = writer.folder.with_name(f".{writer.folder.name}.{uuid.uuid4().hex[:8]}")
        try:
            writer.copy(scratch)
            position, version, rows = _checked(scratch, writer.endpoint)
            folder = self._of(writer.endpoint) / f"{position:012}-{uuid.uuid4().hex[:8]}"
            with atomic_folder(folder) as draft, (scratch / FILE).open("rb") as source:
                pieces = [_put(draft, number, data) for number, data in enumerate(_read(source))]
                size = sum(piece.size for piece in pieces)
                manifest = SnapshotManifest(writer.endpoint.to_json(), position, version, rows, size, pieces)
                write_atomically(draft / MANIFEST, msgspec.json.encode(manifest))
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return StoreSnapshot(folder, manifest)

    def found(self, endpoint: Endpoint) -> list[StoreSnapshot]:
        """Those of this version of an endpoint, the newest first."""
        snapshots = []
        for folder in reversed(self._folders(endpoint)):
            with suppress(FileNotFoundError, NotADirectoryError, msgspec.MsgspecError):
                manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=SnapshotManifest)
                if Endpoint.from_json(manifest.endpoint).fingerprint == endpoint.fingerprint:
                    snapshots.append(StoreSnapshot(folder, manifest))
        return snapshots

    def newest(self, endpoint: Endpoint) -> StoreSnapshot | None:
        """The newest one. Whether it is good shows when it is restored."""
        return next(iter(self.found(endpoint)), None)

    def restore(self, endpoint: Endpoint, into: Path) -> StoreSnapshot | None:
        """Make a store of the newest good snapshot, in a folder that is not there yet; None: there is none."""
        for snapshot in self.found(endpoint):
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
        """Remove all but the newest; gives how many."""
        kept = {str(snapshot.folder) for snapshot in self.found(endpoint)[:keep]}
        gone = [folder for folder in self._folders(endpoint) if str(folder) not in kept]
        for folder in gone:
            remove_atomically(folder, MANIFEST)
        return len(gone)

    def _of(self, endpoint: Endpoint) -> StatePath:
        return self._root / endpoint.name / f"v{endpoint.version}"

    def _folders(self, endpoint: Endpoint) -> list[StatePath]:
        try:
            folders = in_order(self._of(endpoint).iterdir())
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
                raise StoreDamagedError(f"the checksum of {snapshot.folder / piece.name} does not fit")
            target.write(pa.decompress(packed, decompressed_size=piece.size, codec=_COMPRESSION, asbytes=True))
        if target.tell() != snapshot.manifest.size:
            raise StoreDamagedError(f"{snapshot.folder} lacks a piece")


def _checked(folder: Path, endpoint: Endpoint) -> tuple[int, int, int]:
    """Position, version and number of rows of a store that is sound, and of this endpoint."""
    check_pages(folder / FILE)
    reader = StoreReader.open(folder)
    try:
        if reader.endpoint.fingerprint != endpoint.fingerprint or reader.endpoint.indexes != endpoint.indexes:
            raise StoreDamagedError(f"{folder} holds another definition of '{endpoint.name}'")
        with reader.view() as view:
            view.check()
            return view.position, view.version, view.rows
    finally:
        reader.close()
