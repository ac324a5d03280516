"""What an endpoint is and how its changes are laid out: what flows, logs, stores and servers agree on."""

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
"""Names that no endpoint may have: the API answers other questions there."""


class Op(IntEnum):
    """What a change does to the row of its key."""

    UPSERT = 0
    INSERT = 1
    UPDATE = 2
    DELETE = 3


@dataclass(frozen=True)
class Conflicts:
    """What becomes of a change that does not fit what is there. An upsert and a first insert always fit."""

    on_insert: Literal["nothing", "update", "error"] = "nothing"
    on_update: Literal["nothing", "upsert", "error"] = "nothing"
    on_delete: Literal["nothing", "error"] = "nothing"


@dataclass(frozen=True)
class Endpoint:
    """One version of an endpoint: the columns of its rows, what they are found by, and how changes are taken."""

    name: str
    columns: pa.Schema
    key: tuple[str, ...] = ()
    """Without one, rows are only added, and none can be asked for by key."""
    indexes: tuple[tuple[str, ...], ...] = ()
    text: tuple[str, ...] = ()
    """Columns whose words can be searched for."""
    conflicts: Conflicts = Conflicts()
    description: str = ""
    version: int = 1

    @cached_property
    def types(self) -> dict[str, pa.DataType]:
        """The types of its columns."""
        return dict(zip(self.columns.names, self.columns.types, strict=True))

    @property
    def changes(self) -> pa.Schema:
        """The columns of its changes: what is done, the old key if that changes with an update, and the row.

        Of the row of a delete only the key need be there."""
        old = pa.struct([self.columns.field(name) for name in self.key])
        return pa.schema([(OP, pa.int8()), (OLD, old), *self.columns] if self.key else [(OP, pa.int8()), *self.columns])

    @property
    def fingerprint(self) -> str:
        """Tells apart definitions that need a version each. Conflict policies and descriptions may change within it."""
        parts = [to_ddl(self.columns), self.key, sorted(self.indexes), sorted(self.text)]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """As it stands in a log's folder."""
        return {
            "name": self.name,
            "version": self.version,
            "columns": to_ddl(self.columns),
            "key": list(self.key),
            "indexes": [list(one) for one in self.indexes],
            "text": list(self.text),
            "conflicts": vars(self.conflicts),
            "description": self.description,
        }

    @staticmethod
    def from_json(document: dict[str, Any]) -> Endpoint:
        """The inverse of `to_json`."""
        return Endpoint(
            name=document["name"],
            columns=from_ddl(document["columns"]),
            key=tuple(document["key"]),
            indexes=tuple(tuple(one) for one in document["indexes"]),
            text=tuple(document["text"]),
            conflicts=Conflicts(**document["conflicts"]),
            description=document["description"],
            version=document["version"],
        )
