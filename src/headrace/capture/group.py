"""Captures one table group: changes go from the reader of the source through the copy into the log, in commits."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Any

from headrace.capture.copies import copy_of
from headrace.core.context import Context
from headrace.core.errors import ProjectError
from headrace.core.tables import CapturedBatch, TableReader, TableShape
from headrace.log.tables import TableLog, plain, table_log
from headrace.project.tables import TableSpec
from headrace.store.tables.copy import TableCopy

MOST_CHANGES = 50_000
"""Changes that make a commit even before its time."""
COMMIT_SECONDS = 0.2
"""Between two smaller commits: changes that arrive in between are committed together."""
_WAIT_SECONDS, _LOOK_SECONDS = 0.5, 1.0
_QUIET_SECONDS, _LONG_QUIET_SECONDS = 1.0, 10.0


@dataclass
class Progress:
    """The progress of a table group; written by its thread, read by the one that reports it."""

    sequence: int = 0
    position: Mapping[str, Any] | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    complete: frozenset[str] = frozenset()
    newest: str | None = None
    """When the newest change happened at the source."""
    changes: int = 0
    """Weighted rows committed since the process started."""
    lag: int | None = None
    caught_up: bool = False
    """Whether all tables are complete and no change came for a while: a second when the source reports that there is
    none, longer when it cannot."""


class Capture:
    """Writes the changes of one table group to its log until it is stopped; used once, by one thread."""

    def __init__(
        self,
        group: str,
        tables: Mapping[str, TableSpec],
        context: Context,
        folder: Path,
        progress: Progress,
        commit_seconds: float = COMMIT_SECONDS,
    ) -> None:
        self._tables, self._context, self._folder = tables, context, folder
        self._progress = progress
        self._log = table_log(context, group)
        self._commit_seconds = commit_seconds
        self._committed = self._lag_checked = 0.0
        self._last_change = time.monotonic()
        self._deferred: CapturedBatch | None = None

    def run(self, stopping: Event, alive: Callable[[], None]) -> None:
        """Follow the source; call `alive` after each of its answers. Raises the errors of the source."""
        with copy_of(self._folder, self._log) as copy:
            shapes = self._shapes()
            self._update_progress(self._log, 0)
            with closing(self._reader(shapes)) as reader:
                while not stopping.is_set():
                    batch = self._next_batch(reader)
                    if batch is not None:
                        self._commit(copy, batch, shapes)
                        reader.confirm(batch.position)
                    self._update_lag(reader, shapes, quiet=batch is None)
                    alive()

    def _update_lag(self, reader: TableReader, shapes: Mapping[str, TableShape], *, quiet: bool) -> None:
        """Update lag and `caught_up`, at most once a second while changes arrive."""
        now, progress = time.monotonic(), self._progress
        self._last_change = self._last_change if quiet else now
        if quiet or now - self._lag_checked > _LOOK_SECONDS:
            self._lag_checked, progress.lag = now, reader.lag()
        enough = _QUIET_SECONDS if progress.lag == 0 else _LONG_QUIET_SECONDS
        progress.caught_up = now - self._last_change > enough and progress.complete >= shapes.keys()

    def _reader(self, shapes: Mapping[str, TableShape]) -> TableReader:
        sources = {name: spec.source for name, spec in self._tables.items()}
        kind = type(next(iter(sources.values())))
        return kind.reader(sources, shapes, self._log.position(), self._context)

    def _shapes(self) -> dict[str, TableShape]:
        """The shapes in the log; of a new table, that of its source."""
        known = self._log.shapes()
        shapes = {}
        for name, spec in self._tables.items():
            shapes[name] = known.get(name) or plain(spec.shape(name, self._context))
            if name in known and spec.key and tuple(spec.key) != known[name].key:
                raise _changed(name, f"the key was {', '.join(known[name].key)} and is {', '.join(spec.key)}")
        return shapes

    def _next_batch(self, reader: TableReader) -> CapturedBatch | None:
        """The next changes to commit. Changes soon after a commit wait for those that follow."""
        batch, self._deferred = self._deferred or reader.read(_WAIT_SECONDS), None
        due = self._committed + self._commit_seconds
        while batch is not None and _only_changes(batch) and len(batch.changes) < MOST_CHANGES:
            more = reader.read(max(0.0, due - time.monotonic()))
            if more is None:
                break
            if not _only_changes(more):
                self._deferred = more
                break
            batch = _joined(batch, more)
        return batch

    def _commit(self, copy: TableCopy, batch: CapturedBatch, shapes: dict[str, TableShape]) -> None:
        """Commit to the log in one step; after a crash the copy follows the log."""
        for name, shape in batch.shapes.items():
            shapes[name] = _extended(name, shapes.get(name), plain(shape))
        changes = copy.take(batch, shapes)
        # a table that was removed from the project may come back: its rows stay
        known, complete = {**self._log.shapes(), **shapes}, self._log.complete() | batch.ends
        try:
            sequence = self._log.commit(changes, batch.position, known, batch.at, complete, after=copy.sequence)
        except BaseException:
            copy.abort()
            raise
        copy.commit(self._log.id() or "", sequence)
        self._committed = time.monotonic()
        self._update_progress(self._log, sum(rows.num_rows for rows in changes.values()))

    def _update_progress(self, log: TableLog, rows: int) -> None:
        newest, progress = log.newest(), self._progress
        progress.sequence, progress.position = log.end(), log.position()
        progress.counts, progress.complete = log.counts(), log.complete()
        progress.changes += rows
        if newest is not None and newest.at is not None:
            progress.newest = newest.at.isoformat()


def _only_changes(batch: CapturedBatch) -> bool:
    return not (batch.begins or batch.ends or batch.rows or batch.shapes)


def _joined(first: CapturedBatch, second: CapturedBatch) -> CapturedBatch:
    moments = [at for at in (first.at, second.at) if at is not None]
    changes = [*first.changes, *second.changes]
    return replace(second, changes=changes, at=max(moments, default=None))


def _extended(name: str, known: TableShape | None, shape: TableShape) -> TableShape:
    """The new shape, which may only add columns to the known one."""
    if known is None:
        return shape
    if shape.key and shape.key != known.key:
        raise _changed(name, f"the key was {', '.join(known.key)} and is {', '.join(shape.key)}")
    for at, column in enumerate(known.columns):
        now = shape.columns.field(at) if at < len(shape.columns) else None
        if now is None or (now.name, now.type) != (column.name, column.type):
            raise _changed(name, f"column '{column.name}' was {column.type}, and is {_words(column.name, shape)}")
    return replace(shape, key=known.key)


def _words(column: str, shape: TableShape) -> str:
    if column not in shape.columns.names:
        return "gone"
    return f"{shape.columns.field(column).type} at place {shape.columns.get_field_index(column) + 1}"


def _changed(name: str, what: str) -> ProjectError:
    return ProjectError(
        "table-changed",
        f"table '{name}' is not what its log holds: {what}",
        hint="further columns may come at the end; for anything else give the table another name in headrace.yaml",
    )
