"""The files of an archive: their names, the descriptions next to them, and which of them count.

A batch leaves files `<flow>-<sink>-<generation>-<batch>-<n>` in a folder such as `orders/dt=2026-01-31`. Merged ones
are called `…-<first batch>..<last batch>-0000` and have all that these batches left in the folder, so the names alone
show which files are in a merged one: a reader that finds both skips the smaller. Next to each file is `_<name>.json`
with its parts, one per file that it was merged from: their names, bytes, lines, and where the lines come from.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from headrace.core.errors import ProjectError
from headrace.core.files.object_store import ObjectStore
from headrace.core.files.objects import SCHEME, ObjectPath
from headrace.core.files.state_files import StatePath, state_path, sync, write_atomically

MARK, LATE = "_SUCCESS", "_LATE"
WORKSHOP = ".headrace"
UNKNOWN = "unknown"
_NAME = re.compile(r"([^-]+-[^-]+)-([^-]+)-(\d{8,})(?:\.\.(\d{8,}))?-(\d{4,})(\.[A-Za-z0-9.]+)")
_FOLDER = re.compile(r"(?P<topic>[^/]+)/dt=(?P<day>\d{4}-\d\d-\d\d)(?:/hr=(?P<hour>\d\d))?")


@dataclass(frozen=True, order=True)
class DataFile:
    """A file, as its name describes it."""

    writer: str
    """Flow and sink."""
    generation: str
    first: int
    last: int
    number: int
    extension: str
    merged: bool = False

    @staticmethod
    def of(name: str) -> DataFile | None:
        """The file of this name; None if it is not a file of an archive."""
        found = _NAME.fullmatch(name)
        if found is None or name.startswith(("_", ".")):
            return None
        first = int(found[3])
        return DataFile(
            found[1], found[2], first, int(found[4] or first), int(found[5]), found[6], found[4] is not None
        )

    @property
    def name(self) -> str:
        batches = f"{self.first:08d}..{self.last:08d}" if self.merged else f"{self.first:08d}"
        return f"{self.writer}-{self.generation}-{batches}-{self.number:04d}{self.extension}"

    @property
    def about(self) -> str:
        """The name of its description, which is hidden from readers of the data."""
        return f"_{self.name}.json"

    def has(self, other: DataFile) -> bool:
        """Whether the content of the other file is part of this one."""
        return (
            self.merged
            and self != other
            and (self.writer, self.generation) == (other.writer, other.generation)
            and self.first <= other.first
            and other.last <= self.last
        )


@dataclass(frozen=True)
class ArchivePart:
    """The lines that one task of one batch wrote to a folder."""

    name: str
    bytes: int
    records: int
    positions: list[list[int]] = field(default_factory=list)
    """Partition, offset of the first line, number of lines: of lines that follow each other, in their order."""

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "bytes": self.bytes, "records": self.records, "positions": self.positions}


def archive_root(path: str, store: ObjectStore) -> StatePath:
    """The folder that `path` of an archive means."""
    if "://" in path and not path.startswith((SCHEME, "file://")):
        raise ProjectError(
            "archive-place",
            f"an archive cannot be kept in '{path}'",
            hint="name a folder that all workers share, or s3://BUCKET/PATH for an S3-compatible object store",
        )
    return state_path(path.removeprefix("file://"), store)


def sorted_out(names: Iterable[str]) -> tuple[list[DataFile], list[DataFile]]:
    """The files that count, in the order in which they were written, and those that are part of a merged one."""
    found = sorted(file for file in map(DataFile.of, names) if file is not None)
    merged = [file for file in found if file.merged]
    inside = {file for file in found if any(one.has(file) for one in merged)}
    return [file for file in found if file not in inside], sorted(inside)


def parts_of(folder: StatePath, file: DataFile) -> list[ArchivePart]:
    return [ArchivePart(**part) for part in json.loads((folder / file.about).read_bytes())["parts"]]


def write_about(folder: StatePath, file: DataFile, parts: Iterable[ArchivePart]) -> None:
    """Write the description of a file, before the file appears: no file is ever without one."""
    text = json.dumps({"parts": [part.to_json() for part in parts]}, separators=(",", ":"))
    write_atomically(folder / file.about, text.encode())


def orphans(names: Iterable[str], writer: str) -> list[str]:
    """Descriptions of files of a writer that no longer exist, and what an interrupted write left behind."""
    present = set(names)
    half = [name for name in present if name.startswith((f"._{writer}-", f".{MARK}.", f".{LATE}."))]
    descriptions = [name for name in present if name.startswith(f"_{writer}-") and name.endswith(".json")]
    return half + [name for name in descriptions if name[1 : -len(".json")] not in present]


def remove_file(folder: StatePath, file: DataFile) -> None:
    """Remove a file, then its description."""
    (folder / file.name).unlink(missing_ok=True)
    (folder / file.about).unlink(missing_ok=True)


def move(source: StatePath, target: StatePath) -> None:
    """Rename a file, atomically for its readers. A source that does not exist was moved before."""
    if isinstance(source, ObjectPath):
        assert isinstance(target, ObjectPath), "both are on one store"
        if source.is_file():
            source.copy_to(target)
            source.unlink()
        return
    assert not isinstance(target, ObjectPath), "both are on one disk"
    if source.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(source, target)
        sync(target.parent)


def read_note(folder: StatePath, name: str) -> Mapping[str, Any] | None:
    """A mark or a note of late data; None if it does not exist."""
    try:
        return dict(json.loads((folder / name).read_bytes()))
    except FileNotFoundError:
        return None


def ends(folder: str, zone: str) -> float | None:
    """When the day or hour of a folder ends; None for a folder without one."""
    found = _FOLDER.fullmatch(folder)
    if found is None:
        return None
    midnight = datetime.combine(date.fromisoformat(found["day"]), datetime.min.time(), ZoneInfo(zone))
    if found["hour"] is None:
        return (midnight + timedelta(days=1)).timestamp()
    return midnight.replace(hour=int(found["hour"])).timestamp() + 3600
