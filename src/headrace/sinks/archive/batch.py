"""A batch on its way into an archive: a staged batch whose folders are opened before they get its files.

Between the commit and the moves, days that get files are opened: a mark that they are finished is withdrawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from headrace.core.files.state_files import StatePath
from headrace.sinks._publish import StagedBatch
from headrace.sinks.archive.files import LATE, MARK, WORKSHOP, ArchivePart, DataFile, move, write_about

_AT_ONCE = 16


@dataclass(frozen=True)
class Staged:
    """A file that a task has written."""

    folder: str
    path: str
    """Below the staging folder of the attempt; sorted by it, tasks are in their order."""
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
    def _batch(self) -> StagedBatch:
        return StagedBatch(self.root / WORKSHOP, f"{self.writer}-{self.generation}", self.batch_id)

    def is_written(self) -> bool:
        return self._batch.is_written()

    def write(self, stage: Callable[[StatePath], Sequence[Staged]]) -> list[Staged]:
        """Let `stage` write into an empty folder, then commit its files, which are returned."""
        attempt = self._batch.new_attempt()
        files = sorted(stage(attempt), key=lambda file: (file.folder, file.path))
        numbers: dict[str, int] = {}
        planned = []
        for file in files:
            number = numbers[file.folder] = numbers.get(file.folder, -1) + 1
            named = DataFile(self.writer, self.generation, self.batch_id, self.batch_id, number, self.extension)
            part = ArchivePart(named.name, file.bytes, file.records, file.positions)
            planned.append({"staged": f"{attempt.name}/{file.path}", "folder": file.folder, "part": part.to_json()})
        if planned:
            self._batch.commit({"files": planned})
        return files

    def finish(self, withdraw: Callable[[str], bool]) -> int:
        """Move what is staged to its place; returns how many lines are late. `withdraw` opens a folder and returns
        whether it was finished before."""
        files = self._batch.committed() if self.is_written() else []
        closed = {folder for folder in sorted({file["folder"] for file in files}) if withdraw(folder)}
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(self._place, files))
        self._batch.finish()
        return sum(file["part"]["records"] for file in files if file["folder"] in closed)

    def _place(self, planned: Mapping[str, Mapping[str, object]]) -> None:
        part = ArchivePart(**planned["part"])  # type: ignore[arg-type]
        staged, folder = self._batch.staging / str(planned["staged"]), self.root / str(planned["folder"])
        if staged.is_file():
            file = DataFile.of(part.name)
            assert file is not None, "the manifest names files of an archive"
            write_about(folder, file, [part])
            move(staged, folder / part.name)


def withdraw_mark(folder: StatePath) -> bool:
    """Turn the mark of a finished folder into a note of late data; returns whether there was a mark."""
    if not (folder / MARK).is_file():
        return False
    move(folder / MARK, folder / LATE)
    return True
