"""The definition of an endpoint and the layout of its changes, shared by flows, logs, stores and servers."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any, Literal

import pyarrow as pa

from headrace.core.schema import from_ddl, to_ddl

OP, OLD = "__op", "__old"
RESERVED = frozenset({"health", "metrics", "docs", "dashboards", "sql", "tables"})
"""Names that no endpoint may have, because the API uses these paths for other resources."""


class Op(IntEnum):
    """The effect of a change on the row of its key."""

    UPSERT = 0
    INSERT = 1
    UPDATE = 2
    DELETE = 3


@dataclass(frozen=True)
class Conflicts:
    """How to handle a change that conflicts with the stored rows. Upserts and the first insert of a key never do."""

    on_insert: Literal["nothing", "update", "error"] = "nothing"
    on_update: Literal["nothing", "upsert", "error"] = "nothing"
    on_delete: Literal["nothing", "error"] = "nothing"


@dataclass(frozen=True)
class Endpoint:
    """One version of an endpoint: the columns of its rows, its key and indexes, and how conflicts are handled."""

    name: str
    columns: pa.Schema
    key: tuple[str, ...] = ()
    """Without a key, rows are only appended, and no row can be looked up by key."""
    indexes: tuple[tuple[str, ...], ...] = ()
    text: tuple[str, ...] = ()
    """Columns with full-text search."""
    conflicts: Conflicts = Conflicts()
    description: str = ""
    version: int = 1

    @cached_property
    def types(self) -> dict[str, pa.DataType]:
        return dict(zip(self.columns.names, self.columns.types, strict=True))

    @property
    def changes(self) -> pa.Schema:
        """The columns of a change: the operation, the old key if an update changes the key, and the row.

        A delete needs only the key columns of the row.
        """
        old = pa.struct([self.columns.field(name) for name in self.key])
        return pa.schema([(OP, pa.int8()), (OLD, old), *self.columns] if self.key else [(OP, pa.int8()), *self.columns])

    @property
    def fingerprint(self) -> str:
        """Identifies the parts of the definition that need a new version when they change.

        Conflict policies and descriptions are not part of it.
        """
        parts = [to_ddl(self.columns), self.key, sorted(self.indexes), sorted(self.text)]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """Return the document that is stored in the folder of a log."""
        return {
            "name": self.name,
            "version": self.version,
            "columns": to_ddl(self.columns),
            "key": list(self.key),
            "indexes": [list(index) for index in self.indexes],
            "text": list(self.text),
            "conflicts": vars(self.conflicts),
            "description": self.description,
        }

    @staticmethod
    def from_json(document: dict[str, Any]) -> Endpoint:
        return Endpoint(
            name=document["name"],
            columns=from_ddl(document["columns"]),
            key=tuple(document["key"]),
            indexes=tuple(tuple(index) for index in document["indexes"]),
            text=tuple(document["text"]),
            conflicts=Conflicts(**document["conflicts"]),
            description=document["description"],
            version=document["version"],
        )
