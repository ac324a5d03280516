"""`type: push`: rows that programs send over REST and gRPC."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Literal

import pyarrow as pa
from pydantic import Field, model_validator

from headrace.core.context import Context
from headrace.core.durations import Duration
from headrace.core.errors import Exit, ProjectError, did_you_mean
from headrace.core.files.objects import ObjectPath
from headrace.core.positions import Position
from headrace.core.schema import from_ddl
from headrace.core.tables import CapturedBatch, RowChange, TableReader, TableShape, TableSource
from headrace.log.inbox import Inbox
from headrace.log.log import LogCutError, LogDamagedError
from headrace.tables.push.rows import PushRows

_LOOK_SECONDS, _LOOK_AT_OBJECTS_SECONDS = 0.05, 1.0
_CUT_SECONDS = 30.0
"""Between two cuts of an inbox, each of which writes a file."""
_MOST_CHANGES = 20_000


class PushTable(TableSource):
    """Rows that programs send to `POST /tables/NAME`, or by gRPC, where Headrace serves.

    Delivery: exactly once. A request is atomic, and is answered when it is durable; a repeated one with the same
    idempotency key within `max_age` gets the same answer and changes nothing. Order: as answered. Inserts and updates
    are both upserts, and a delete of a missing row does nothing: the content of the table is not yet known when a
    request is answered. Scale: some thousand requests per second and node; each API process holds the
    idempotency keys of `max_age` in memory, about 200 bytes each.
    """

    type: Literal["push"] = "push"
    columns: str = Field(description="The columns and their types.", examples=["id bigint, name string, at timestamp"])
    key: list[str] = Field(min_length=1, description="The columns that identify a row.", examples=[["id"]])
    max_age: Duration = Field(timedelta(hours=24), description="How long idempotency keys are remembered.")

    @model_validator(mode="after")
    def _key_of_columns(self) -> PushTable:
        try:
            columns = from_ddl(self.columns)
        except ProjectError as error:
            raise ValueError(f"'columns' is {error.message}") from None
        for name in self.key:
            if name not in columns.names:
                raise ValueError(f"'key' names '{name}'; {did_you_mean(name, columns.names, 'columns')}")
            if pa.types.is_nested(columns.field(name).type):
                raise ValueError(
                    f"'key' names '{name}', which is {columns.field(name).type}: such a column cannot identify rows"
                )
        if len(set(self.key)) < len(self.key):
            raise ValueError("'key' names a column twice")
        return self

    @property
    def group(self) -> str:
        """All push tables are read together."""
        return "push"

    @property
    def label(self) -> str:
        return "push"

    @property
    def declared(self) -> TableShape:
        """The columns and key in the options."""
        return TableShape(from_ddl(self.columns), tuple(self.key))

    def shape(self, context: Context) -> TableShape:
        """The columns and key in the options."""
        return self.declared

    @classmethod
    def reader(
        cls,
        tables: Mapping[str, TableSource],
        shapes: Mapping[str, TableShape],
        after: Position | None,
        context: Context,
    ) -> TableReader:
        """Follows the inboxes of the tables."""
        own = {name: source for name, source in tables.items() if isinstance(source, PushTable)}
        return PushReader(own, shapes, after, context)


class PushReader(TableReader):
    """Reads the inboxes of tables. A position has the position of each inbox, by table."""

    def __init__(
        self,
        tables: Mapping[str, PushTable],
        shapes: Mapping[str, TableShape],
        after: Position | None,
        context: Context,
        *,
        cut_seconds: float = _CUT_SECONDS,
    ) -> None:
        own = {name: table.declared for name, table in tables.items()}
        root = context.log_path
        self._inboxes = {name: Inbox(root, name, table.max_age) for name, table in tables.items()}
        self._rows = {name: PushRows(name, shape) for name, shape in own.items()}
        self._first = frozenset(name for name in own if name not in (after or {}))
        self._other = {name: shape for name, shape in own.items() if shape != shapes.get(name)}
        # other tables of the position may be added again
        self._position = {**(after or {}), **{name: self._inboxes[name].begin() for name in self._first}}
        self._look = _LOOK_AT_OBJECTS_SECONDS if isinstance(root, ObjectPath) else _LOOK_SECONDS
        self._cut_seconds = cut_seconds
        self._cut_due = time.monotonic() + cut_seconds

    def read(self, seconds: float) -> CapturedBatch | None:
        if self._first or self._other:
            begun = CapturedBatch(dict(self._position), begins=self._first, ends=self._first, shapes=self._other)
            self._first, self._other = frozenset(), {}
            return begun
        deadline = time.monotonic() + seconds
        while (batch := self._take()) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            time.sleep(min(self._look, left))
        return batch

    def _take(self) -> CapturedBatch | None:
        changes: list[RowChange] = []
        newest = None
        for name, inbox in self._inboxes.items():
            if len(changes) >= _MOST_CHANGES:
                break
            rows = self._rows[name]
            try:
                for segment, entries in inbox.after(self._position[name]):
                    changes += [rows.change(op, row) for op, row in entries]
                    self._position[name] = segment.position
                    newest = segment.at if newest is None else max(newest, segment.at)
                    if len(changes) >= _MOST_CHANGES:
                        break
            except LogCutError:
                raise _gone(name) from None
            except (LogDamagedError, ValueError) as error:
                raise _unreadable(name, error) from None
        return None if newest is None else CapturedBatch(dict(self._position), changes, at=newest)

    def confirm(self, position: Position) -> None:
        """Cut off from time to time what is durable in the log."""
        if time.monotonic() < self._cut_due:
            return
        self._cut_due = time.monotonic() + self._cut_seconds
        for name, inbox in self._inboxes.items():
            if position.get(name, 0) > inbox.begin():
                inbox.cut(position[name])

    def lag(self) -> int:
        """Segments that were not read yet."""
        return sum(max(0, inbox.end() - self._position[name]) for name, inbox in self._inboxes.items())

    def close(self) -> None:
        """Nothing is held open."""


def _gone(table: str) -> ProjectError:
    return ProjectError(
        "push-inbox-cut",
        f"what was pushed to '{table}' after the position of the table's log is gone from its inbox",
        hint="the table's log is older than the inbox: restore the log that belongs to it",
        exit_code=Exit.CONFLICT,
    )


def _unreadable(table: str, error: Exception) -> ProjectError:
    return ProjectError(
        "push-inbox-damaged",
        f"what was pushed to '{table}' cannot be read: {error}",
        hint="if the types of its columns were changed, change them back; otherwise check the disk",
    )
