"""Days of an archive that are over: their small files are merged, then they are marked as finished.

A file that a mark has named stays for ever: merged are only files that no mark has named yet. Merging is putting
compressed files one after the other. 1. The description of the merged file is written. 2. The file appears, in one
step; its name shows which files it contains, so that they no longer count. 3. Those are removed. Interrupted anywhere
and repeated, it leaves each line once.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import BinaryIO

from headrace.core.capabilities import Rewind, replayed_rows_lost
from headrace.core.files.objects import ObjectPath
from headrace.core.files.state_files import StatePath, names_in, remove_tree, sync, write_atomically
from headrace.sinks._publish import safe_name
from headrace.sinks.archive.files import (
    LATE,
    MARK,
    WORKSHOP,
    ArchivePart,
    DataFile,
    orphans,
    parts_of,
    read_note,
    remove_file,
    sorted_out,
    write_about,
)

_AT_ONCE = 16
_COPIED = 1 << 20


def finish_folder(root: StatePath, name: str, writer: str, most: int) -> None:
    """Merge what this writer has put into a folder into files of about `most` bytes, and mark it as finished."""
    folder = root / name
    note = read_note(folder, LATE)
    names = names_in(folder)
    if note is None and MARK in names:
        return
    files, inside = sorted_out(names)
    for file in inside:
        remove_file(folder, file)
    for one in orphans(names_in(folder), writer):
        (folder / one).unlink(missing_ok=True)
    settled = set(note["files"]) if note else set()
    loose = [file for file in files if file.writer == writer and file.name not in settled]
    for group in _groups(folder, loose, most):
        _merge(root, folder, group)
    _mark(folder, note["late"] if note else 0, settled if note else None)


def _groups(folder: StatePath, files: Iterable[DataFile], most: int) -> Iterator[list[DataFile]]:
    """Groups of files to merge. Those of one batch stay together: the name of a merged file covers whole batches."""
    for _, alike in groupby(files, key=lambda file: (file.writer, file.generation, file.extension)):
        group: list[DataFile] = []
        size = 0
        for _, batch in groupby(alike, key=lambda file: file.first):
            members = list(batch)
            bytes_ = sum((folder / file.name).stat().st_size for file in members)
            if group and size + bytes_ > most:
                yield from [group] if len(group) > 1 else []
                group, size = [], 0
            group, size = group + members, size + bytes_
        yield from [group] if len(group) > 1 else []


def _merge(root: StatePath, folder: StatePath, group: Sequence[DataFile]) -> None:
    one = group[0]
    merged = DataFile(one.writer, one.generation, one.first, max(f.last for f in group), 0, one.extension, merged=True)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        parts = [part for some in pool.map(lambda file: parts_of(folder, file), group) for part in some]
    write_about(folder, merged, parts)
    with _appearing(root, one.writer, folder / merged.name) as out:
        for file in group:
            _copy(folder / file.name, out)
    for file in group:
        remove_file(folder, file)


def _copy(source: StatePath, out: BinaryIO, most: int | None = None) -> None:
    with source.open("rb") as file:
        if most is None:
            shutil.copyfileobj(file, out, _COPIED)
        while most:
            chunk = file.read(min(most, _COPIED))
            out.write(chunk)
            most -= len(chunk)


@contextmanager
def _appearing(root: StatePath, writer: str, target: StatePath) -> Iterator[BinaryIO]:
    """A file to fill that appears when the block ends, or not at all."""
    if isinstance(target, ObjectPath):
        with tempfile.TemporaryDirectory(prefix="headrace-archive-") as scratch:
            draft = Path(scratch) / "merged"
            with draft.open("wb") as out:
                yield out
            target.put(draft)
        return
    whole = _drafts(root, writer) / secrets.token_hex(8)
    assert isinstance(whole, Path), "the target is on the same disk"
    whole.parent.mkdir(parents=True, exist_ok=True)
    with whole.open("wb") as out:
        yield out
    sync(whole)
    os.replace(whole, target)
    sync(target.parent)


def _drafts(root: StatePath, writer: str) -> StatePath:
    return root / WORKSHOP / "merging" / writer


def _mark(folder: StatePath, late: int, settled: set[str] | None) -> None:
    """Name all files of a folder. Lines in files that an earlier mark did not name came late."""
    files, _ = sorted_out(names_in(folder))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        parts = dict(zip(files, pool.map(lambda file: parts_of(folder, file), files), strict=True))
    records = {file.name: sum(part.records for part in some) for file, some in parts.items()}
    if settled is not None:
        late += sum(count for name, count in records.items() if name not in settled)
    mark = {
        "finished": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "records": sum(records.values()),
        "bytes": sum(part.bytes for some in parts.values() for part in some),
        "late": late,
        "files": records,
    }
    write_atomically(folder / MARK, json.dumps(mark, indent=1).encode())
    (folder / LATE).unlink(missing_ok=True)


def drop_drafts(root: StatePath, writer: str) -> None:
    """Remove what was being merged when the last engine ended."""
    remove_tree(_drafts(root, writer))


def withdrawn(root: StatePath, rewind: Rewind) -> list[tuple[StatePath, DataFile]]:
    """The files with lines of batches that a rewind removes, with their folders."""
    writer = safe_name(rewind.flow, rewind.sink)
    found = []
    for path in root.rglob("*-*") if root.is_dir() else ():
        file = DataFile.of(path.name)
        if file is not None and file.writer == writer and not _in_workshop(root, path):
            _refuse_replayed(file, root, rewind)
            if not rewind.keeps(file.generation, file.last):
                found.append((path.parent, file))
    return found


def withdraw(root: StatePath, rewind: Rewind, reopen: Callable[[str], None]) -> None:
    """Remove those lines, after `reopen` has recorded that their folder is open.

    Staged files and manifests are removed first: else their files would still appear.
    """
    writer = safe_name(rewind.flow, rewind.sink)
    for part in ("commits", "staging"):
        for name in names_in(root / WORKSHOP / part):
            file = DataFile.of(f"{name.removesuffix('.json')}-0000.x")
            if file is not None and file.writer == writer and not rewind.keeps(file.generation, file.first):
                path = root / WORKSHOP / part / name
                path.unlink(missing_ok=True) if part == "commits" else remove_tree(path)
    for folder, file in withdrawn(root, rewind):
        reopen(str(folder).removeprefix(str(root)).strip("/"))
        (folder / MARK).unlink(missing_ok=True)
        (folder / LATE).unlink(missing_ok=True)
        _take_back(root, folder, file, rewind)


def _take_back(root: StatePath, folder: StatePath, file: DataFile, rewind: Rewind) -> None:
    """Remove a file; of a merged one only the parts that the rewind does not keep."""
    kept = [part for part in parts_of(folder, file) if _part_stays(part, rewind)]
    if kept:
        last = DataFile.of(kept[-1].name)
        assert last is not None, "parts are files of an archive"
        shorter = DataFile(file.writer, file.generation, file.first, last.last, 0, file.extension, merged=True)
        write_about(folder, shorter, kept)
        with _appearing(root, file.writer, folder / shorter.name) as out:
            _copy(folder / file.name, out, sum(part.bytes for part in kept))
    remove_file(folder, file)


def _part_stays(part: ArchivePart, rewind: Rewind) -> bool:
    file = DataFile.of(part.name)
    return file is not None and rewind.keeps(file.generation, file.last)


def _in_workshop(root: StatePath, path: StatePath) -> bool:
    return str(path).removeprefix(str(root)).strip("/").startswith(f"{WORKSHOP}/")


def _refuse_replayed(file: DataFile, root: StatePath, rewind: Rewind) -> None:
    if rewind.last_kept is not None and file.generation.startswith("replay"):
        raise replayed_rows_lost(rewind, str(root))
