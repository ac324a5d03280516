"""The part of a read transaction that queries use, so that `store.query` does not depend on `store.endpoint`."""

from __future__ import annotations

from typing import Any, Protocol

from headrace.core.endpoints import Endpoint
from headrace.store.lmdb.environment import Transaction
from headrace.store.query.key_ranges import Index


class QueryTransaction(Protocol):
    """An open read transaction of the store of one endpoint. `endpoint.reader.ReadTransaction` implements it."""

    txn: Transaction
    endpoint: Endpoint
    databases: dict[bytes, Any]
    indexes: list[Index]

    @property
    def rows(self) -> int:
        """The number of rows."""
