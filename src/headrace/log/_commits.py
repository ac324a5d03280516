"""The documents that commit segments, each with a checksum."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from headrace.log.log import LogDamagedError, Mark, Segment, SegmentPart


@dataclass(frozen=True)
class Marks:
    """The newest batch of each generation of each writer."""

    batches: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def has(self, mark: Mark) -> bool:
        """Whether this batch is committed: batches are committed in rising order."""
        return self.batches.get(mark.writer, {}).get(mark.generation, -1) >= mark.batch

    def with_(self, mark: Mark) -> Marks:
        """These marks with one more batch."""
        generations = {**self.batches.get(mark.writer, {}), mark.generation: mark.batch}
        return Marks({**self.batches, mark.writer: generations})


@dataclass(frozen=True)
class SegmentCommit:
    """One segment, with the batches that are committed up to it."""

    segment: Segment
    marks: Marks

    def to_bytes(self) -> bytes:
        """The content of its file."""
        segment = self.segment
        return sealed(
            {
                "position": segment.position,
                "mark": asdict(segment.mark),
                "at": segment.at.isoformat(),
                "parts": [asdict(part) for part in segment.parts],
                "marks": self.marks.batches,
            }
        )

    @staticmethod
    def from_bytes(content: bytes, name: str) -> SegmentCommit:
        document = unsealed(content, name)
        parts = tuple(SegmentPart(**part) for part in document["parts"])
        segment = Segment(
            position=document["position"],
            mark=Mark(**document["mark"]),
            changes=sum(part.rows for part in parts),
            bytes=sum(part.bytes for part in parts),
            at=datetime.fromisoformat(document["at"]),
            parts=parts,
        )
        return SegmentCommit(segment, Marks(document["marks"]))


def sealed(document: Mapping[str, Any]) -> bytes:
    return json.dumps({**document, "crc": _checksum(document)}).encode()


def unsealed(content: bytes, name: str) -> dict[str, Any]:
    """The document, after a check of its checksum."""
    try:
        document: dict[str, Any] = dict(json.loads(content))
    except (ValueError, TypeError) as error:
        raise LogDamagedError(f"{name}: {error}") from None
    if document.pop("crc", None) != _checksum(document):
        raise LogDamagedError(f"{name}: its checksum does not fit")
    return document


def _checksum(document: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(document, sort_keys=True).encode())
