"""An inbox: requests that were accepted over HTTP or gRPC, for a table or a stream.

Any number of processes add to it at the same time; what all readers have read is cut off. A segment holds several
requests, which are committed together. A process reads all earlier segments before it adds one, and its commit fails
if another process was faster: so a repeated request, to any process, is recognised by its id and adds nothing. Ids
outlive their segments: before segments are cut off, their ids are written to `ids/<position>-<time of newest>.json`.
`read.json` holds the position up to which all readers of a stream have read: later segments count as backlog.
"""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from headrace.core.endpoints import OP, Endpoint, Op
from headrace.core.files.state_files import StatePath, write_atomically
from headrace.log._commits import sealed, unsealed
from headrace.log.files import FileLog
from headrace.log.log import LogCutError, Mark, Segment, SegmentPart
from headrace.log.parts import task_of

_COLUMNS = pa.schema([("row", pa.binary()), ("id", pa.binary())])
_NAME_BYTES, _CONTENT_BYTES = 16, 8
_AT_ONCE = 256
_ROWS, _IDS = 0, 1
"""Ids are a separate piece: a process that adds needs all ids, but not the rows."""
_KEPT = re.compile(r"(\d{12})-(\d+)\.json")


@dataclass(frozen=True, slots=True)
class InboxEntry:
    """One change of one row: the row as JSON; for a delete at least its key."""

    op: Op
    row: bytes
    id: bytes | None = None


@dataclass(frozen=True)
class Pushed:
    """The changes of one request, committed together."""

    entries: Sequence[InboxEntry]
    id: bytes | None = None


class RepeatedIdError(Exception):
    """An id that was used for another content."""


def id_of(name: str, content: bytes, *, request: bool) -> bytes:
    """The id of a request or a change, made of its name and its content."""
    kind = b"request\0" if request else b"change\0"
    named = hashlib.blake2b(kind + name.encode(), digest_size=_NAME_BYTES).digest()
    return named + hashlib.blake2b(content, digest_size=_CONTENT_BYTES).digest()


class Inbox:
    """The inbox of one table or stream. Not thread-safe."""

    def __init__(self, root: StatePath, name: str, max_age: timedelta) -> None:
        folder = root / ".inbox" / name  # no log of an endpoint has such a name
        self._log = FileLog(folder, Endpoint(name, _COLUMNS))
        self._kept = folder / "ids"
        self._read = folder / "read.json"
        self._probe = folder / "probe"
        self._max_age = max_age
        self._known = _KnownIds(max_age)
        self._position = 0
        self._sizes: deque[tuple[int, int]] = deque()

    # --- adding

    def add(self, requests: Sequence[Pushed]) -> list[int | RepeatedIdError]:
        """Commit several requests together; the position of each, or why it was refused."""
        while True:
            self._catch_up()
            position = self._position + 1
            results, entries, ids = self._new(requests, position)
            if not entries and not ids:
                return results
            # the mark makes the commit fail if another process has committed since: then there may be new ids
            mark, named = Mark("push", "", position), [*ids, *_ids(entries)]
            staging = self._log.staging(mark)
            parts = staging.stage(_ROWS, [_rows_batch(entries)]) + staging.stage(_IDS, [_ids_batch(named)])
            segment = self._log.commit_parts(mark, parts)
            if segment is not None:
                self._known.add(segment.at, position, named)
                self._reach(segment)
                return results

    def probe(self) -> None:
        """Check that the folder can be written; raises an OSError if not."""
        write_atomically(self._probe, b"")

    def unread(self) -> int:
        """Bytes that some reader of the stream has not read yet, of the segments that this object knows."""
        read = self.read()
        while self._sizes and self._sizes[0][0] <= read:
            self._sizes.popleft()
        return sum(size for _, size in self._sizes)

    def _reach(self, segment: Segment) -> None:
        self._position = segment.position
        self._sizes.append((segment.position, segment.bytes))

    def _new(
        self, requests: Sequence[Pushed], position: int
    ) -> tuple[list[int | RepeatedIdError], list[InboxEntry], list[bytes]]:
        """The position of each request, and the changes and ids to add."""
        results: list[int | RepeatedIdError] = []
        entries: list[InboxEntry] = []
        ids: list[bytes] = []
        fresh: dict[bytes, bytes] = {}

        def place(id: bytes) -> int | None:
            name, content = id[:_NAME_BYTES], id[_NAME_BYTES:]
            known = (fresh[name], position) if name in fresh else self._known.get(name)
            if known is not None and known[0] != content:
                raise RepeatedIdError
            return None if known is None else known[1]

        for request in requests:
            try:
                before = None if request.id is None else place(request.id)
                places = [None if entry.id is None else place(entry.id) for entry in request.entries]
            except RepeatedIdError as error:
                results.append(error)
                continue
            new = [entry for entry, at in zip(request.entries, places, strict=True) if at is None]
            if before is not None or not new:
                results.append(before or max((at or 0 for at in places), default=0))
                continue
            named = [request.id] if request.id is not None else []
            fresh.update({id[:_NAME_BYTES]: id[_NAME_BYTES:] for id in (*named, *_ids(new))})
            entries += new
            ids += named
            results.append(position)
        return results, entries, ids

    def _catch_up(self) -> None:
        """Read the ids that other processes have added."""
        while True:
            try:
                segments = self._log.after(self._position, _AT_ONCE)
            except LogCutError:
                self._learn_kept()
                continue
            for segment in segments:
                self._known.add(segment.at, segment.position, self._ids_in(segment))
                self._reach(segment)
            if len(segments) < _AT_ONCE:
                return

    def _learn_kept(self) -> None:
        """Read the ids of segments that were cut off."""
        cut = self._log.begin() - 1
        for reached, at, file in self._kept_files():
            with suppress(FileNotFoundError):  # expired meanwhile
                for position, id in _read_ids(file) if reached > self._position else ():
                    self._known.add(at, position, [id])
        self._position = max(self._position, cut)

    def _ids_in(self, segment: Segment) -> list[bytes]:
        named = replace(segment, parts=_parts(segment, _IDS))
        return [id for batch in self._log.changes(named) for id in batch["id"].to_pylist()]

    # --- reading

    def begin(self) -> int:
        """The position before the oldest segment."""
        return self._log.begin() - 1

    def end(self) -> int:
        return self._log.end()

    def after(self, position: int) -> Iterator[tuple[Segment, list[tuple[Op, bytes]]]]:
        """The segments after a position with their changes. Raises LogCutError when they were cut off."""
        for segment in self._log.after(position, _AT_ONCE):
            changes: list[tuple[Op, bytes]] = []
            for batch in self.batches(segment):
                pairs = zip(batch[OP].to_pylist(), batch["row"].to_pylist(), strict=True)
                changes += [(Op(op), row) for op, row in pairs]
            yield segment, changes

    def segments(self, position: int, limit: int = _AT_ONCE) -> list[Segment]:
        """The segments after a position. Raises LogCutError when they were cut off."""
        return self._log.after(position, limit)

    def batches(self, segment: Segment) -> Iterator[pa.RecordBatch]:
        """The changes of a segment, with a column `row`."""
        return self._log.changes(replace(segment, parts=_parts(segment, _ROWS)))

    def read(self) -> int:
        """The position up to which all readers of the stream have read."""
        try:
            return int(unsealed(self._read.read_bytes(), self._read.name)["position"])
        except FileNotFoundError:
            return 0

    def release(self, position: int, keep: timedelta) -> None:
        """Record that all readers have read up to a position, and cut off what is before it and older than `keep`."""
        if position != self.read():
            write_atomically(self._read, sealed({"position": position}))
        oldest, reached = datetime.now(UTC) - keep, self.begin()
        old = reached
        while old == reached < position:
            segments = [segment for segment in self._log.after(reached, _AT_ONCE) if segment.position <= position]
            reached = segments[-1].position
            old = max((segment.position for segment in segments if segment.at < oldest), default=old)
        if old > self.begin():
            self.cut(old)

    def cut(self, position: int) -> None:
        """Cut off all up to a position that is durable elsewhere; ids are kept for `max_age`."""
        at, ids = datetime.fromtimestamp(0, UTC), list[tuple[int, str]]()
        reached = self.begin()
        while reached < position:
            for segment in self._log.after(reached, min(_AT_ONCE, position - reached)):
                ids += [(segment.position, id.hex()) for id in self._ids_in(segment)]
                at, reached = max(at, segment.at), segment.position
        if ids:
            name = f"{position:012d}-{math.ceil(at.timestamp() * 1000)}.json"
            write_atomically(self._kept / name, sealed({"ids": ids}))
        if position > self.begin():
            self._log.cut(position)
        for _, at, file in self._kept_files():
            if at < datetime.now(UTC) - self._max_age:
                file.unlink(missing_ok=True)

    def _kept_files(self) -> list[tuple[int, datetime, StatePath]]:
        """The files with ids of segments that were cut off: position, time of the newest id, and file."""
        try:
            matches = [(name, file) for file in self._kept.iterdir() if (name := _KEPT.fullmatch(file.name))]
        except FileNotFoundError:
            return []
        named = [(int(name[1]), datetime.fromtimestamp(int(name[2]) / 1000, UTC), file) for name, file in matches]
        return sorted(named, key=lambda entry: entry[0])


class _KnownIds:
    """The ids of the last `max_age`, each with the digest of its content and its position."""

    def __init__(self, max_age: timedelta) -> None:
        self._seconds = max_age.total_seconds()
        self._places: dict[bytes, tuple[bytes, int]] = {}
        self._ages: deque[tuple[float, bytes]] = deque()

    def get(self, name: bytes) -> tuple[bytes, int] | None:
        """Content and position of an id; None for a new one."""
        return self._places.get(name)

    def add(self, at: datetime, position: int, ids: Sequence[bytes]) -> None:
        """Add ids, and forget those that have expired."""
        for id in ids:
            self._places[id[:_NAME_BYTES]] = (id[_NAME_BYTES:], position)
            self._ages.append((at.timestamp(), id[:_NAME_BYTES]))
        while self._ages and self._ages[0][0] < time.time() - self._seconds:
            self._places.pop(self._ages.popleft()[1], None)


def _ids(entries: Sequence[InboxEntry]) -> list[bytes]:
    return [entry.id for entry in entries if entry.id is not None]


def count(segment: Segment) -> int:
    """The number of rows of a segment."""
    return sum(part.rows for part in _parts(segment, _ROWS))


def _parts(segment: Segment, task: int) -> tuple[SegmentPart, ...]:
    return tuple(part for part in segment.parts if task_of(part.name) == task)


def _rows_batch(entries: Sequence[InboxEntry]) -> pa.RecordBatch:
    return _batch([int(entry.op) for entry in entries], [entry.row for entry in entries], [None] * len(entries))


def _ids_batch(ids: Sequence[bytes]) -> pa.RecordBatch:
    return _batch([int(Op.UPSERT)] * len(ids), [None] * len(ids), list(ids))


def _batch(ops: list[int], rows: list[bytes | None], ids: list[bytes | None]) -> pa.RecordBatch:
    arrays = [pa.array(ops, pa.int8()), pa.array(rows, pa.binary()), pa.array(ids, pa.binary())]
    return pa.RecordBatch.from_arrays(arrays, names=[OP, *_COLUMNS.names])


def _read_ids(file: StatePath) -> list[tuple[int, bytes]]:
    return [(position, bytes.fromhex(id)) for position, id in unsealed(file.read_bytes(), file.name)["ids"]]
