"""Reading an archive: its folders, and the lines of what they hold, also while small files are being merged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import groupby

import numpy as np
import pyarrow as pa

from headrace.core.errors import Exit, ProjectError
from headrace.core.files.state_files import StatePath, names_in
from headrace.sinks.archive.files import ArchivePart, DataFile, parts_of, sorted_out

_ATTEMPTS = 5
_DECODERS = {".gz": "gzip", ".zst": "zstd"}


@dataclass(frozen=True)
class Located:
    """A part, in the file that has it now."""

    part: ArchivePart
    file: DataFile
    start: int


@dataclass(frozen=True)
class Coverage:
    """What an archive has of one partition."""

    partition: int
    records: int
    first: int
    last: int
    repeated: int
    """Records that are there more than once."""
    absent: int
    """Offsets between the first and the last that are missing: offsets of transaction markers, or of other days."""


def folders(root: StatePath, topics: Sequence[str], first: date | None, last: date | None) -> list[str]:
    """The folders of these topics (all when none is named) and days, in their order."""
    found = []
    for topic in sorted(topics or [name for name in names_in(root) if not name.startswith((".", "_"))]):
        for day in sorted(name for name in names_in(root / topic) if name.startswith("dt=")):
            if _within(day, first, last):
                hours = sorted(name for name in names_in(root / topic / day) if name.startswith("hr="))
                found += [f"{topic}/{day}/{hour}" for hour in hours] or [f"{topic}/{day}"]
    return found


def _within(day: str, first: date | None, last: date | None) -> bool:
    try:
        at = date.fromisoformat(day.removeprefix("dt="))
    except ValueError:  # those without a time belong to no range
        return first is None and last is None
    return (first is None or first <= at) and (last is None or at <= last)


def located(folder: StatePath) -> dict[str, Located]:
    """All parts of a folder by their names, each once, in the order they were written."""
    for attempts_left in reversed(range(_ATTEMPTS)):
        try:
            return _located(folder)
        except FileNotFoundError:  # merged meanwhile: look again
            if not attempts_left:
                raise
    raise AssertionError("the last attempt returns or raises")


def _located(folder: StatePath) -> dict[str, Located]:
    found = {}
    files, _ = sorted_out(names_in(folder))
    for file in files:
        start = 0
        for part in parts_of(folder, file):
            found[part.name] = Located(part, file, start)
            start += part.bytes
    return found


def read_parts(folder: StatePath, names: Sequence[str]) -> Iterator[tuple[ArchivePart, list[bytes]]]:
    """The lines of some parts of a folder, one part after the other, from wherever they are by now."""
    left = list(names)
    for attempts_left in reversed(range(_ATTEMPTS)):
        where = located(folder)
        _require(folder, left, where)
        try:
            for file, group in groupby([where[name] for name in left], key=lambda one: one.file):
                for part, lines in _read(folder, file, list(group)):
                    yield part, lines
                    left.remove(part.name)
        except FileNotFoundError:
            if not attempts_left:
                raise
        if not left:
            return


def _read(folder: StatePath, file: DataFile, parts: Sequence[Located]) -> Iterator[tuple[ArchivePart, list[bytes]]]:
    with (folder / file.name).open("rb") as data:
        for one in parts:
            data.seek(one.start)
            content = _decoded(data.read(one.part.bytes), file.extension)
            yield one.part, content.split(b"\n")[:-1]


def _decoded(content: bytes, extension: str) -> bytes:
    compression = _DECODERS.get(f".{extension.rpartition('.')[2]}")
    if compression is None:
        return content
    with pa.CompressedInputStream(pa.BufferReader(content), compression) as stream:
        return bytes(stream.read())


def _require(folder: StatePath, names: Sequence[str], where: dict[str, Located]) -> None:
    gone = next((name for name in names if name not in where), None)
    if gone is not None:
        raise ProjectError(
            "archive-changed",
            f"{folder} no longer has what '{gone}' had: a rewind took it back",
            hint="start again, with --again",
            exit_code=Exit.CONFLICT,
        )


def coverage(parts: Sequence[ArchivePart]) -> list[Coverage]:
    """The offsets that parts of one topic cover, by partition, from their descriptions."""
    runs = np.array([run for part in parts for run in part.positions if run[1] >= 0], np.int64).reshape(-1, 3)
    return [_covered(int(number), runs[runs[:, 0] == number]) for number in np.unique(runs[:, 0])]


def _covered(partition: int, runs: np.ndarray) -> Coverage:
    runs = runs[np.argsort(runs[:, 1], kind="stable")]
    begins, lengths = runs[:, 1], runs[:, 2]
    reached = np.concatenate(([begins[0]], np.maximum.accumulate(begins + lengths)[:-1]))
    new = np.clip(begins + lengths - np.maximum(begins, reached), 0, None)
    first, last = int(begins[0]), int((begins + lengths).max()) - 1
    there, records = int(new.sum()), int(lengths.sum())
    return Coverage(partition, records, first, last, records - there, last - first + 1 - there)
