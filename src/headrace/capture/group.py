"""One group of tables: what its reader takes from the source goes through the copy into the log, commit by commit."""

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
"""So many changes make a commit, however quickly they come."""
COMMIT_SECONDS = 0.2
"""Between two commits, when they are smaller: what comes meanwhile is committed together."""
_WAIT_SECONDS, _LOOK_SECONDS = 0.5, 1.0
_QUIET_SECONDS, _LONG_QUIET_SECONDS = 1.0, 10.0


@dataclass
class Progress:
    """How far a group is; written by its thread, read by whoever tells it."""

    sequence: int = 0
    position: Mapping[str, Any] | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    complete: frozenset[str] = frozenset()
    newest: str | None = None
    """When the newest change happened at the source."""
    changes: int = 0
    """Weighted rows committed since the process began."""
    lag: int | None = None
    caught_up: bool = False
    """Whether all tables are whole, and nothing came for a while: a second when the source says that there is nothing,
    longer when it cannot tell."""


class Capture:
    """Takes what the reader of a group gives until it is told to stop; used by one thread, once."""

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
        self._committed = self._looked = 0.0
        self._heard = time.monotonic()
        self._held: CapturedBatch | None = None

    def run(self, stopping: Event, alive: Callable[[], None]) -> None:
        """Follow the source; `alive` is called whenever it has answered. Raises what the source raises."""
        with copy_of(self._folder, self._log) as copy:
            shapes = self._shapes()
            self._tell(self._log, 0)
            with closing(self._reader(shapes)) as reader:
                while not stopping.is_set():
                    taken = self._gathered(reader)
                    if taken is not None:
                        self._keep(copy, taken, shapes)
                        reader.confirm(taken.position)
                    self._look(reader, shapes, quiet=taken is None)
                    alive()

    def _look(self, reader: TableReader, shapes: Mapping[str, TableShape], *, quiet: bool) -> None:
        """See how far behind it is, not more than once a second while changes come."""
        now, progress = time.monotonic(), self._progress
        self._heard = self._heard if quiet else now
        if quiet or now - self._looked > _LOOK_SECONDS:
            self._looked, progress.lag = now, reader.lag()
        enough = _QUIET_SECONDS if progress.lag == 0 else _LONG_QUIET_SECONDS
        progress.caught_up = now - self._heard > enough and progress.complete >= shapes.keys()

    def _reader(self, shapes: Mapping[str, TableShape]) -> TableReader:
        sources = {name: spec.source for name, spec in self._tables.items()}
        kind = type(next(iter(sources.values())))
        return kind.reader(sources, shapes, self._log.position(), self._context)

    def _shapes(self) -> dict[str, TableShape]:
        """Those that the log has; of a table that is new, what its source says."""
        known = self._log.shapes()
        found = {}
        for name, spec in self._tables.items():
            found[name] = known.get(name) or plain(spec.shape(name, self._context))
            if name in known and spec.key and tuple(spec.key) != known[name].key:
                raise _changed(name, f"the key was {', '.join(known[name].key)} and is {', '.join(spec.key)}")
        return found

    def _gathered(self, reader: TableReader) -> CapturedBatch | None:
        """What is there now. Changes that come soon after a commit wait for those after them."""
        taken, self._held = self._held or reader.read(_WAIT_SECONDS), None
        due = self._committed + self._commit_seconds
        while taken is not None and _only_changes(taken) and len(taken.changes) < MOST_CHANGES:
            more = reader.read(max(0.0, due - time.monotonic()))
            if more is None:
                break
            if not _only_changes(more):
                self._held = more
                break
            taken = _joined(taken, more)
        return taken

    def _keep(self, copy: TableCopy, taken: CapturedBatch, shapes: dict[str, TableShape]) -> None:
        """Make it durable in one step: the log decides, the copy follows it after a crash."""
        for name, shape in taken.shapes.items():
            shapes[name] = _extended(name, shapes.get(name), plain(shape))
        changes = copy.take(taken, shapes)
        # a table that was taken out of the project may come back: what is there of it stays
        known, complete = {**self._log.shapes(), **shapes}, self._log.complete() | taken.ends
        try:
            sequence = self._log.commit(changes, taken.position, known, taken.at, complete, after=copy.sequence)
        except BaseException:
            copy.abort()
            raise
        copy.commit(self._log.id() or "", sequence)
        self._committed = time.monotonic()
        self._tell(self._log, sum(rows.num_rows for rows in changes.values()))

    def _tell(self, log: TableLog, rows: int) -> None:
        newest, progress = log.newest(), self._progress
        progress.sequence, progress.position = log.end(), log.position()
        progress.counts, progress.complete = log.counts(), log.complete()
        progress.changes += rows
        if newest is not None and newest.at is not None:
            progress.newest = newest.at.isoformat()


def _only_changes(taken: CapturedBatch) -> bool:
    return not (taken.begins or taken.ends or taken.rows or taken.shapes)


def _joined(one: CapturedBatch, more: CapturedBatch) -> CapturedBatch:
    moments = [at for at in (one.at, more.at) if at is not None]
    changes = [*one.changes, *more.changes]
    return replace(more, changes=changes, at=max(moments, default=None))


def _extended(name: str, known: TableShape | None, shape: TableShape) -> TableShape:
    """A shape that adds columns to the one that was known; nothing else may change."""
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
