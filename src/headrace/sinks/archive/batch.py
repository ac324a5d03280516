"""A batch on its way into an archive: staged, made to count by a manifest, then put in place file by file.

1. Tasks write files into a staging folder. 2. A manifest with the final name of every file is written in one step: from
here on the batch counts as written. 3. The days that get files are open: a mark that said otherwise is withdrawn.
4. The files get their final names. 5. Staging goes. A batch that runs again finds the manifest and goes on with step 3,
or finds none and starts afresh. On an object store a file gets its name by a copy that the store makes.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from headrace.core.files.state_files import StatePath, remove_tree, sync, write_atomically
from headrace.sinks.archive.files import LATE, MARK, WORKSHOP, ArchivePart, DataFile, move, names_in, write_about

_AT_ONCE = 16


@dataclass(frozen=True)
class Staged:
    """A file that a task has written."""

    folder: str
    path: str
    """Below the staging folder of the attempt; tasks are in their order by it."""
    records: int
    bytes: int
    positions: list[list[int]] = field(default_factory=list)


@dataclass(frozen=True)
class ArchiveBatch:
    """One batch of one generation of one sink."""

    root: StatePath
    writer: str
    generation: str
    batch_id: int
    extension: str

    @property
    def _name(self) -> str:
        return f"{self.writer}-{self.generation}-{self.batch_id:08d}"

    @property
    def _staging(self) -> StatePath:
        return self.root / WORKSHOP / "staging" / self._name

    @property
    def manifest(self) -> StatePath:
        """There as soon as the batch counts as written."""
        return self.root / WORKSHOP / "commits" / f"{self._name}.json"

    def is_written(self) -> bool:
        """Whether the batch must not be written again."""
        return self.manifest.is_file()

    def write(self, stage: Callable[[StatePath], Sequence[Staged]]) -> list[Staged]:
        """Let `stage` write into an empty folder, then make it count; what there is.

        Each attempt has a folder of its own: an engine that lost its driver may still be writing into the last one.
        """
        remove_tree(self._staging)
        attempt = secrets.token_hex(4)
        files = sorted(stage(self._staging / attempt), key=lambda file: (file.folder, file.path))
        numbers: dict[str, int] = {}
        planned = []
        for file in files:
            number = numbers[file.folder] = numbers.get(file.folder, -1) + 1
            named = DataFile(self.writer, self.generation, self.batch_id, self.batch_id, number, self.extension)
            part = ArchivePart(named.name, file.bytes, file.records, file.positions)
            planned.append({"staged": f"{attempt}/{file.path}", "folder": file.folder, "part": part.to_json()})
        if planned:
            write_atomically(self.manifest, json.dumps({"files": planned}).encode())
            sync(self.manifest.parent)
        return files

    def finish(self, withdraw: Callable[[str], bool]) -> int:
        """Put what is staged in its place; how many lines came too late. `withdraw` opens a folder, and says whether
        it was finished before."""
        files = json.loads(self.manifest.read_bytes())["files"] if self.is_written() else []
        closed = {folder for folder in sorted({file["folder"] for file in files}) if withdraw(folder)}
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(self._place, files))
        remove_tree(self._staging)
        self._forget_older()
        return sum(file["part"]["records"] for file in files if file["folder"] in closed)

    def _place(self, planned: Mapping[str, Mapping[str, object]]) -> None:
        part = ArchivePart(**planned["part"])  # type: ignore[arg-type]
        staged, folder = self._staging / str(planned["staged"]), self.root / str(planned["folder"])
        if staged.is_file():
            file = DataFile.of(part.name)
            assert file is not None, "the manifest names files of an archive"
            write_about(folder, file, [part])
            move(staged, folder / part.name)

    def _forget_older(self) -> None:
        """Spark never replays a batch once a later one of the same generation has begun."""
        series = f"{self.writer}-{self.generation}-"
        for name in names_in(self.manifest.parent):
            number = name.removeprefix(series).removesuffix(".json")
            if name.startswith(series) and number.isdecimal() and int(number) < self.batch_id:
                (self.manifest.parent / name).unlink(missing_ok=True)


def withdraw_mark(folder: StatePath) -> bool:
    """Say that a folder is no longer finished; whether it was. What the mark said stays, as a note of late data."""
    if not (folder / MARK).is_file():
        return False
    move(folder / MARK, folder / LATE)
    return True
