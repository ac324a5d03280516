"""Checks that a store holds exactly what was written: every checksum and every count.

`meta` holds, for the rows and for the entries of each index, the sum of their checksums, updated by each change. So one
scan detects a lost or changed entry without reading the row of each entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

from headrace.core.endpoints import Endpoint
from headrace.store.endpoint.fill import EndpointShape, word_entries
from headrace.store.lmdb.environment import Transaction
from headrace.store.lmdb.errors import StoreDamagedError
from headrace.store.rows.layout import (
    EVENTS,
    LENGTHS,
    META,
    NUMBER,
    REFUSED,
    ROWS,
    STATE,
    TEXT,
    State,
    index_name,
    sum_of_entries,
    sum_of_rows,
    unpack_event,
    unpack_row,
    unsealed,
)

_AT_ONCE = 10_000


@dataclass(frozen=True)
class Contents:
    """The databases of a store in one read transaction."""

    txn: Transaction
    endpoint: Endpoint
    databases: dict[bytes, Any]

    def check(self) -> None:
        """StoreDamagedError when anything is not as it was written. Takes a second or two for a million rows."""
        state = State.unpack(self.txn.get(STATE, db=self.databases[META]))
        self._expect(self._count(ROWS) == state.rows and self._rows() == state.sums[ROWS], "rows are missing")
        for number in range(len(self.endpoint.indexes)):
            name = index_name(number)
            holds = self._count(name) == state.rows and sum_of_entries(self._items(name)) == state.sums[name]
            self._expect(holds, f"index {number} lacks entries")
        self._expect(sum_of_entries(self._items(TEXT)) == state.sums[TEXT], "words lack entries")
        self._check_numbered(state)

    def verify(self) -> None:
        """As `check`, and compare the entries of all indexes and words with those computed from the rows."""
        self.check()
        state = State.unpack(self.txn.get(STATE, db=self.databases[META]))
        expected = dict.fromkeys(state.sums, 0)
        expected[ROWS] = state.sums[ROWS]
        shape = EndpointShape(self.endpoint)
        items = self._items(ROWS)
        while chunk := list(islice(items, _AT_ONCE)):
            keys = [key for key, _ in chunk]
            columns = dict(zip(shape.indexed, shape.pick.columns(unpack_row(*item)[1] for item in chunk), strict=True))
            for number in range(len(self.endpoint.indexes)):
                pairs = zip(shape.keys.value_keys(number, columns), keys, strict=True)
                entries = ((value_key + key, LENGTHS[len(key)]) for value_key, key in pairs)
                expected[index_name(number)] += sum_of_entries(entries)
            for number, name in enumerate(self.endpoint.text):
                texts = zip(keys, columns[name].to_pylist(), strict=True)
                expected[TEXT] += sum_of_entries(word_entries(number, texts))
        self._expect(expected == state.sums, "indexes do not fit the rows")

    def _check_numbered(self, state: State) -> None:
        """Check events and refused changes: no number is missing between the first and the last."""
        versions = [unpack_event(number, packed)[0] for number, packed in self._items(EVENTS)]
        self._expect(not versions or versions[-1] == state.version, "events are missing")
        refused = []
        for number, packed in self._items(REFUSED):
            unsealed(packed)
            refused.append(NUMBER.unpack(number)[0])
        self._expect(
            bool(refused) == bool(state.refused) and refused[-1:] in ([], [state.refused]), "notes are missing"
        )
        for numbers in (versions, refused):
            self._expect(all(after == before + 1 for before, after in pairwise(numbers)), "numbers are missing")

    def _rows(self) -> int:
        return sum_of_rows(packed for key, packed in self._items(ROWS) if unpack_row(key, packed))

    def _count(self, name: bytes) -> int:
        return int(self.txn.stat(self.databases[name])["entries"])

    def _items(self, name: bytes) -> Iterator[tuple[bytes, bytes]]:
        """All entries of a database. Keys must be ascending, or lookups would miss them."""
        before = b""
        with self.txn.cursor(db=self.databases[name]) as cursor:
            for key, value in cursor.iternext():
                self._expect(key > before, "keys are out of order")
                before = key
                yield key, value

    def _expect(self, holds: bool, problem: str) -> None:
        if not holds:
            raise StoreDamagedError(f"the store of '{self.endpoint.name}' is damaged: {problem}")
