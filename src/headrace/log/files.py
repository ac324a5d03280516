"""A log in files, on a disk or an object store.

`commits/<position>.json` is written atomically by the fastest writer, and names the pieces of the segment in `parts/`.
It also holds the newest batch of every writer, so that the last commit alone identifies a repeated batch.
`cuts/<position>.json` marks up to where the log was cut off, and holds the same; the greatest is valid. A commit file
at or before a cut is a leftover.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

import pyarrow as pa

from headrace.core.endpoints import Endpoint
from headrace.core.files.objects import ObjectPath
from headrace.core.files.state_files import StatePath, copy_file, sync, write_new
from headrace.log._commits import Marks, SegmentCommit, sealed, unsealed
from headrace.log._numbered import files_in, highest, number_of, numbered
from headrace.log.log import Log, LogCutError, LogDamagedError, Mark, Segment, SegmentPart, segment_of
from headrace.log.parts import FileStaging, place_of, read_part, series

_FIRST = 0
# a follower lists the store once a second; the cut matters only to a follower that is far behind
_LOOK_AT_CUTS_SECONDS = 10.0
# a batch that was staged longer ago and is not committed never will be
_FORGOTTEN_SECONDS = 24 * 3600.0


class FileLog(Log):
    """The log of one version of an endpoint, in one folder."""

    def __init__(self, folder: StatePath, endpoint: Endpoint, id: str = "0") -> None:
        self.endpoint = endpoint
        self.id = id
        self._parts = folder / "parts"
        self._commits = folder / "commits"
        self._cuts = folder / "cuts"
        self._seen = _FIRST
        self._cut_seen = _FIRST
        self._cut_due = 0.0

    def make(self) -> None:
        """Nothing: folders are created with their first file."""

    def remove(self) -> None:
        """Nothing: all of it is in the folder."""

    def end(self) -> int:
        """The newest position: a single lookup of the next one, as long as no other process commits."""
        cut = self._cut()
        if self._seen < cut or self._seen == _FIRST or self._file(self._seen + 1).is_file():
            self._seen = max(cut, highest(self._commits))
        return self._seen

    def begin(self) -> int:
        """The position after the last cut."""
        return self._cut() + 1

    def after(self, position: int, limit: int = 64) -> list[Segment]:
        """Reads the commits one by one up to the newest."""
        self._require_kept(position, self._recent_cut())
        segments: list[Segment] = []
        while len(segments) < limit:
            commit = self._read(position + len(segments) + 1)
            if commit is None:
                break
            segments.append(commit.segment)
        if segments:
            # leftovers before a cut can still be read
            self._require_kept(position, self._cut())
            self._seen = max(self._seen, segments[-1].position)
        return segments

    def changes(self, segment: Segment) -> Iterator[pa.RecordBatch]:
        """Reads piece by piece."""
        for part in segment.parts:
            try:
                yield from read_part(self._parts, part)
            except FileNotFoundError:
                self._require_kept(segment.position - 1, self._cut())
                raise LogDamagedError(f"{part.name} of segment {segment.position} is missing") from None

    def has(self, mark: Mark) -> bool:
        """Whether a batch is committed already."""
        return self._newest()[1].has(mark)

    def staging(self, mark: Mark) -> FileStaging:
        """Where tasks write the changes of a batch."""
        return FileStaging(self._parts, self.endpoint.changes, mark)

    def commit_parts(self, mark: Mark, parts: Sequence[SegmentPart]) -> Segment | None:
        """Commit the changes that tasks have staged, in the given order."""
        if not parts:
            return None
        sync(self._parts)
        while True:
            end, marks = self._newest()
            if marks.has(mark):
                return None
            segment = segment_of(end + 1, mark, parts)
            written = write_new(self._file(end + 1), SegmentCommit(segment, marks.with_(mark)).to_bytes())
            # a writer that was suspended here may have written where others have committed and cut off; if it was
            # cut off only now, its mark is known
            if written and self._cut() < segment.position:
                self._seen = segment.position
                return segment

    def take_in(self, other: Log, segment: Segment) -> None:
        """Commit a segment of another log, unless it is committed. Files are linked where possible."""
        if not isinstance(other, FileLog):
            super().take_in(other, segment)
            return
        for part in segment.parts:
            copy_file(other._parts / part.name, self._parts / part.name)
        self.commit_parts(segment.mark, segment.parts)

    def cut(self, position: int) -> None:
        """Record where the log is cut off, then remove what is before."""
        end = self.end()
        if not _FIRST < position <= end:
            raise ValueError(f"the log has positions up to {end}, and is to be cut off at {position}")
        commit = self._read(position)
        if commit is not None and position > self._cut():
            document = {"position": position, "marks": commit.marks.batches}
            write_new(numbered(self._cuts, position), sealed(document))
        self._tidy()

    def _tidy(self) -> None:
        """Remove commits, cuts and pieces that are no longer needed."""
        (cut, gone), (_, known) = self._last_cut(), self._newest()
        for file in files_in(self._commits):
            if (number_of(file) or cut + 1) <= cut:
                file.unlink(missing_ok=True)
        for file in files_in(self._cuts):
            if (number_of(file) or cut) < cut:
                file.unlink(missing_ok=True)
        cut_off, committed = _batches(gone), _batches(known)
        for file in files_in(self._parts):
            name, batch = place_of(file.name) or ("", 0)
            if batch <= cut_off.get(name, -1) or (batch > committed.get(name, -1) and _is_forgotten(file)):
                file.unlink(missing_ok=True)

    def _newest(self) -> tuple[int, Marks]:
        """The newest position, and the batches that are committed up to it."""
        while True:
            end = self.end()
            cut, marks = self._last_cut()
            if end <= cut:
                return cut, marks
            commit = self._read(end)
            if self._cut() >= end:
                continue  # cut off just now: the commit may be a leftover
            if commit is None:
                raise LogDamagedError(f"{self._file(end)} is missing")
            return end, commit.marks

    def _last_cut(self) -> tuple[int, Marks]:
        """Up to where the log was cut off, and the batches that were committed by then."""
        while (cut := self._cut()) > _FIRST:
            file = numbered(self._cuts, cut)
            with suppress(FileNotFoundError):  # a later one replaced it
                return cut, Marks(unsealed(file.read_bytes(), file.name)["marks"])
        return _FIRST, Marks()

    def _read(self, position: int) -> SegmentCommit | None:
        file = self._file(position)
        try:
            return SegmentCommit.from_bytes(file.read_bytes(), file.name)
        except FileNotFoundError:
            return None

    def _file(self, position: int) -> StatePath:
        return numbered(self._commits, position)

    def _cut(self) -> int:
        self._cut_seen = max(self._cut_seen, highest(self._cuts))
        self._cut_due = time.monotonic() + (_LOOK_AT_CUTS_SECONDS if isinstance(self._cuts, ObjectPath) else 0.0)
        return self._cut_seen

    def _recent_cut(self) -> int:
        return self._cut_seen if time.monotonic() < self._cut_due else self._cut()

    def _require_kept(self, position: int, cut: int) -> None:
        if position < cut:
            raise LogCutError(f"the log of {self.endpoint.name} v{self.endpoint.version} begins after {cut}")


def _batches(marks: Marks) -> dict[str, int]:
    return {
        series(writer, generation): batch
        for writer, generations in marks.batches.items()
        for generation, batch in generations.items()
    }


def _is_forgotten(file: StatePath) -> bool:
    try:
        return file.stat().st_mtime < time.time() - _FORGOTTEN_SECONDS
    except FileNotFoundError:
        return False
