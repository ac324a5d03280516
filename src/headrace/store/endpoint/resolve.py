"""Resolves a batch of changes: settles conflicts one change after the other and keeps only the differences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from headrace.core.endpoints import OLD, OP, Conflicts, Endpoint, Op
from headrace.store.rows.layout import NUMBER, KeyMaker, old_keys, pack_event
from headrace.store.rows.row_json import RowJson
from headrace.store.rows.unservable import replace_unservable

EXISTS = "primary key exists"
MISSING = "primary key not found"


@dataclass(frozen=True)
class RefusedChange:
    """A change that the endpoint's conflict policy rejects, or that cannot be served."""

    index: int
    """The number of the change among those applied together, from 0."""
    op: Op
    reason: str
    json: bytes
    """The row of the change."""


@dataclass(frozen=True)
class Prepared:
    """A batch of changes, with everything derived from it that does not need the store."""

    batch: pa.RecordBatch
    ops: list[int]
    keys: list[bytes]
    """Empty for an endpoint without key."""
    olds: list[bytes | None] | None
    """Old keys; None when no change has an old key."""
    json: list[bytes]
    unservable: dict[int, str]
    """Why changes cannot be served, by their number."""

    def touched(self) -> set[bytes]:
        """The keys of all rows that may change."""
        keys = set(self.keys)
        if self.olds is not None:
            keys.update(old for old in self.olds if old is not None)
        return keys


def prepare(batch: pa.RecordBatch, endpoint: Endpoint, maker: KeyMaker, writer: RowJson) -> Prepared:
    """Derive keys and JSON from the columns of a batch."""
    batch, unservable = replace_unservable(batch, endpoint.columns)
    keys: list[bytes] = []
    olds: list[bytes | None] | None = None
    if endpoint.key:
        keys = maker.row_keys([batch.column(name) for name in endpoint.key])
        old = batch.column(OLD)
        olds = old_keys(maker, old, endpoint.key) if old.null_count < len(old) else None
    return Prepared(batch, batch.column(OP).to_pylist(), keys, olds, writer.rows(batch), unservable)


@dataclass
class BatchOutcome:
    """The result of a batch of changes."""

    version: int
    rows: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """For each row that was set: the number of the change in the batch, and its version."""
    gone: set[bytes] = field(default_factory=set)
    events: list[tuple[bytes, bytes]] = field(default_factory=list)
    ignored: int = 0
    refused: list[RefusedChange] = field(default_factory=list)


class Resolver:
    """Settles the changes of one batch against the stored rows."""

    def __init__(self, conflicts: Conflicts, prepared: Prepared, stored: dict[bytes, bytes], version: int) -> None:
        self._conflicts = conflicts
        self._prepared = prepared
        self._now: dict[bytes, bytes] = stored  # key -> JSON, after the changes so far
        self._outcome = BatchOutcome(version)

    def run(self) -> BatchOutcome:
        steps: dict[int, Callable[[int, bytes, bytes], None]] = {
            Op.UPSERT: self._upsert,
            Op.INSERT: self._insert,
            Op.UPDATE: self._update,
            Op.DELETE: self._delete,
        }
        keys, olds, unservable = self._prepared.keys, self._prepared.olds, self._prepared.unservable
        for index, op in enumerate(self._prepared.ops):
            key = keys[index] if keys else NUMBER.pack(self._outcome.version + 1)
            if index in unservable:
                self._refuse(index, unservable[index])
            elif olds is None and op == Op.UPSERT:
                self._set(index, key, self._now.get(key))
            else:
                steps[op](index, key, key if olds is None else olds[index] or key)
        return self._outcome

    def _upsert(self, index: int, key: bytes, old: bytes) -> None:
        if old != key and old in self._now:
            self._remove(old)
        self._set(index, key, self._now.get(key))

    def _insert(self, index: int, key: bytes, _: bytes) -> None:
        before = self._now.get(key)
        if before is None or self._conflicts.on_insert == "update":
            self._set(index, key, before)
        else:
            self._conflict(index, self._conflicts.on_insert, EXISTS)

    def _update(self, index: int, key: bytes, old: bytes) -> None:
        policy = self._conflicts.on_update
        before = self._now.get(old)
        if before is None and policy != "upsert":
            self._conflict(index, policy, MISSING)
        elif old != key and key in self._now:
            self._conflict(index, policy, EXISTS)
        elif old == key or before is None:
            self._set(index, key, before)
        else:
            del self._now[old]
            self._outcome.rows.pop(old, None)
            self._outcome.gone.add(old)
            self._set(index, key, before)

    def _delete(self, index: int, key: bytes, old: bytes) -> None:
        if old in self._now:
            self._remove(old)
        else:
            self._conflict(index, self._conflicts.on_delete, MISSING)

    def _set(self, index: int, key: bytes, before: bytes | None) -> None:
        json = self._prepared.json[index]
        outcome = self._outcome
        if json == before:
            outcome.ignored += 1
            return
        outcome.version += 1
        outcome.rows[key] = (index, outcome.version)
        outcome.gone.discard(key)
        self._now[key] = json
        op = Op.INSERT if before is None else Op.UPDATE
        outcome.events.append(pack_event(outcome.version, op, key, json, before))

    def _remove(self, key: bytes) -> None:
        before = self._now.pop(key)
        outcome = self._outcome
        outcome.version += 1
        outcome.rows.pop(key, None)
        outcome.gone.add(key)
        outcome.events.append(pack_event(outcome.version, Op.DELETE, key, None, before))

    def _conflict(self, index: int, policy: str, reason: str) -> None:
        if policy == "nothing":
            self._outcome.ignored += 1
        else:
            self._refuse(index, reason)

    def _refuse(self, index: int, reason: str) -> None:
        json = self._prepared.json[index]
        self._outcome.refused.append(RefusedChange(index, Op(self._prepared.ops[index]), reason, json))
