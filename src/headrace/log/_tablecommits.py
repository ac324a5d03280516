"""The documents of a table log: what a commit adds, and the state after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any

from headrace.core.positions import Position
from headrace.core.schema import from_ddl, to_ddl
from headrace.core.tables import TableShape
from headrace.log._commits import sealed, unsealed
from headrace.log.log import SegmentPart

_schema = lru_cache(maxsize=1024)(from_ddl)
"""The columns of DDL, cached: they are nearly always those of the commit before."""


@dataclass(frozen=True)
class TableSegment:
    """The changes of one commit."""

    sequence: int
    at: datetime | None
    """When the newest change happened at the source, if that reports it."""
    committed: datetime
    position: Position
    """Where the reader of the source resumes after it."""
    parts: Mapping[str, tuple[SegmentPart, ...]] = field(repr=False)
    """The files of weighted rows, by table."""

    @property
    def rows(self) -> int:
        """The number of weighted rows."""
        return sum(part.rows for parts in self.parts.values() for part in parts)


@dataclass(frozen=True)
class TableCommit:
    """A segment, and the state of the tables after it."""

    segment: TableSegment
    shapes: Mapping[str, Mapping[str, Any]]
    """By table: `columns` as DDL, and `key`."""
    complete: tuple[str, ...]
    counts: Mapping[str, int]
    """The number of rows of each table."""

    def to_bytes(self) -> bytes:
        """The content of its file."""
        segment = self.segment
        return sealed(
            {
                "sequence": segment.sequence,
                "at": None if segment.at is None else segment.at.isoformat(),
                "committed": segment.committed.isoformat(),
                "position": dict(segment.position),
                "parts": {table: [asdict(part) for part in parts] for table, parts in segment.parts.items()},
                "shapes": self.shapes,
                "complete": sorted(self.complete),
                "counts": self.counts,
            }
        )

    @staticmethod
    def from_bytes(content: bytes, name: str) -> TableCommit:
        document = unsealed(content, name)
        segment = TableSegment(
            sequence=document["sequence"],
            at=None if document["at"] is None else datetime.fromisoformat(document["at"]),
            committed=datetime.fromisoformat(document["committed"]),
            position=document["position"],
            parts={table: tuple(SegmentPart(**part) for part in parts) for table, parts in document["parts"].items()},
        )
        return TableCommit(segment, document["shapes"], tuple(document["complete"]), document["counts"])


def shape_to_json(shape: TableShape) -> dict[str, Any]:
    return {"columns": to_ddl(shape.columns), "key": list(shape.key)}


def shape_from_json(document: Mapping[str, Any]) -> TableShape:
    return TableShape(_schema(document["columns"]), tuple(document["key"]))


def plain(shape: TableShape) -> TableShape:
    """A shape with the types it has when it is read again: one Arrow type per type of Spark."""
    return shape_from_json(shape_to_json(shape))
