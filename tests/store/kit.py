"""Stores for tests, made of plain rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.core.endpoints import OLD, OP, Endpoint, Op
from headrace.store.endpoint.reader import ReadTransaction, StoreReader
from headrace.store.endpoint.writer import StoreWriter
from headrace.store.query.query import ResultPage, parse_query

NO_BOUND = 1_000_000


def changes(endpoint: Endpoint, op: Op, rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    """The same done to each of some rows."""
    old = {OLD: None} if endpoint.key else {}
    return pa.RecordBatch.from_pylist([{OP: int(op), **old, **row} for row in rows], endpoint.changes)


class OpenStore:
    """A store that is open, to write into and to ask."""

    def __init__(self, folder: Path, endpoint: Endpoint, rows: Sequence[dict[str, Any]] = ()) -> None:
        self.endpoint = endpoint
        self.writer = StoreWriter.open(folder, endpoint)
        self.put(rows)
        self.reader = StoreReader.open(folder)

    def put(self, rows: Sequence[dict[str, Any]]) -> None:
        """Insert or replace."""
        self.writer.apply(self.writer.position + 1, [changes(self.endpoint, Op.UPSERT, rows)])

    def take(self, rows: Sequence[dict[str, Any]]) -> None:
        """Delete."""
        self.writer.apply(self.writer.position + 1, [changes(self.endpoint, Op.DELETE, rows)])

    def page(self, document: dict[str, Any], *, bound: int = NO_BOUND, default: int | None = 50) -> ResultPage:
        """A page of a query."""
        with self.reader.transaction() as transaction:
            return transaction.query(parse_query(document, self.endpoint, page=None, default=default), bound)

    def query(self, document: dict[str, Any], *, bound: int = NO_BOUND) -> list[dict[str, Any]]:
        """All rows of a query, unless it has a limit of its own."""
        return rows_of(self.page(document, bound=bound, default=None))

    def count(self, document: dict[str, Any], *, bound: int = NO_BOUND) -> int:
        """How many rows a query gives."""
        with self.reader.transaction() as transaction:
            return transaction.count(parse_query(document, self.endpoint, page=None, default=None), bound)

    @contextmanager
    def transaction(self) -> Iterator[ReadTransaction]:
        """One moment."""
        with self.reader.transaction() as transaction:
            yield transaction

    def close(self) -> None:
        """Let go of the folder."""
        self.reader.close()
        self.writer.close()


def rows_of(page: ResultPage) -> list[dict[str, Any]]:
    """Rows as their JSON has them."""
    return [json.loads(row.json) for row in page.rows]
