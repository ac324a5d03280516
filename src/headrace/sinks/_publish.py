"""Batches of files that are written exactly once: staged, committed by a manifest, then moved to their final names.

1. Tasks write files below a staging folder. 2. A manifest with the final name of every staged file is put in place in
one step: from here on the batch is written. 3. The files are moved to their final names. 4. The staging folder is
removed. A batch that runs again finds the manifest and resumes with step 3, or finds none and starts again. On an
object store a file is moved by a copy that the store makes.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.core.capabilities import Rewind, replayed_rows_lost
from headrace.core.files.state_files import StatePath, names_in, remove_tree, sync, write_atomically

# <flow>-<sink>-<generation>-<batch>: none of the parts contains a hyphen
_BATCH = re.compile(r"([^-]+)-([^-]+)-([^-]+)-(\d{8,})(?:-\d{4,})?(?:\.|$)")


@dataclass(frozen=True)
class StagedBatch:
    """One batch of one generation of a sink: its staging folder and its manifest."""

    workshop: StatePath
    """The folder for staging and manifests; readers of the data do not see it."""
    series: str
    """Flow, sink and generation."""
    batch_id: int

    @property
    def name(self) -> str:
        return f"{self.series}-{self.batch_id:08d}"

    @property
    def staging(self) -> StatePath:
        return self.workshop / "staging" / self.name

    @property
    def manifest(self) -> StatePath:
        """Exists as soon as the batch is written."""
        return self.workshop / "commits" / f"{self.name}.json"

    def is_written(self) -> bool:
        return self.manifest.is_file()

    def new_attempt(self) -> StatePath:
        """A new folder below the empty staging folder: an engine that lost its driver may still write to the last."""
        remove_tree(self.staging)
        return self.staging / secrets.token_hex(4)

    def commit(self, document: dict[str, Any]) -> None:
        write_atomically(self.manifest, json.dumps(document, indent=1).encode())
        sync(self.manifest.parent)

    def committed(self) -> Any:
        """The `files` of the manifest."""
        return json.loads(self.manifest.read_bytes())["files"]

    def finish(self) -> None:
        """Remove the staging folder and older manifests: Spark never repeats a batch after a later one has begun."""
        remove_tree(self.staging)
        for name in names_in(self.manifest.parent):
            number = name.removeprefix(f"{self.series}-").removesuffix(".json")
            if name.startswith(f"{self.series}-") and number.isdecimal() and int(number) < self.batch_id:
                (self.manifest.parent / name).unlink(missing_ok=True)


@dataclass(frozen=True)
class Publication:
    """One batch on its way into a local folder.

    Staging and manifests are in a hidden folder next to the target, not in it: no glob over the target sees them.
    """

    target: Path
    series: str
    batch_id: int

    @property
    def _batch(self) -> StagedBatch:
        return StagedBatch(workshop(self.target), self.series, self.batch_id)

    def is_written(self) -> bool:
        return self._batch.is_written()

    def write(
        self,
        stage: Callable[[Path], None],
        has_rows: Callable[[Path], bool],
        place: Callable[[Path], Path | None] = lambda folder: folder,
    ) -> int:
        """Let `stage` write into an empty folder, then commit the files; returns their size in bytes.

        `place` maps a staged folder to the folder below the target for its files; None: they are not published.
        """
        attempt = self._batch.new_attempt()
        assert isinstance(attempt, Path)
        attempt.parent.mkdir(parents=True, exist_ok=True)
        stage(attempt)
        staged = sorted(path for path in attempt.rglob("*") if path.is_file() and not path.name.startswith(("_", ".")))
        folders = {path: place(path.relative_to(attempt).parent) for path in filter(has_rows, staged)}
        published = [(path, folder) for path, folder in folders.items() if folder is not None]
        for path, _ in published:
            sync(path)
        files = {
            str(path.relative_to(attempt.parent)): self._final_name(folder, path.name, number)
            for number, (path, folder) in enumerate(published)
        }
        size = sum(path.stat().st_size for path, _ in published)
        self._batch.commit({"batch": self.batch_id, "files": files})
        return size

    def finish(self) -> None:
        """Move what is still staged to its final place; a file that is no longer staged is already there."""
        files: dict[str, str] = self._batch.committed()
        for name, final in files.items():
            staged, published = self._batch.staging / name, self.target / final
            if staged.exists():
                published.parent.mkdir(parents=True, exist_ok=True)
                os.replace(str(staged), published)
        for folder in {(self.target / final).parent for final in files.values()}:
            sync(folder)
        self._batch.finish()

    def _final_name(self, folder: Path, staged: str, number: int) -> str:
        extension = staged.partition(".")[2]
        return str(folder / f"{self._batch.name}-{number:04d}.{extension}")


def workshop(target: Path) -> Path:
    """The folder for staging and manifests of a target folder."""
    return target.parent / f".{target.name}.headrace"


def withdrawn(target: Path, rewind: Rewind) -> list[Path]:
    """The published files of batches that a rewind removes."""
    return [path for path in target.rglob("*") if path.is_file() and _goes(path.name, target, rewind)]


def withdraw(target: Path, rewind: Rewind) -> None:
    """Delete them, after what was about to be published: else it would still appear."""
    for part in ("commits", "staging"):
        for path in (workshop(target) / part).glob("*"):
            if _goes(path.name, target, rewind):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    for path in withdrawn(target, rewind):
        path.unlink(missing_ok=True)


def forget_others(target: Path, flow: str, sink: str, generation: str, batch_id: int) -> None:
    """Delete the files that a sink of a flow has published in a folder, except those of this batch."""
    kept = f"{safe_name(flow, sink, generation)}-{batch_id:08d}-"
    for path in target.rglob(f"{safe_name(flow, sink)}-*"):
        if path.is_file() and _BATCH.match(path.name) and not path.name.startswith(kept):
            path.unlink(missing_ok=True)


def _goes(name: str, target: Path, rewind: Rewind) -> bool:
    found = _BATCH.match(name)
    if found is None or [found[1], found[2]] != [safe_name(rewind.flow), safe_name(rewind.sink)]:
        return False
    if rewind.last_kept is not None and found[3].startswith("replay"):
        raise replayed_rows_lost(rewind, str(target))
    return not rewind.keeps(found[3], int(found[4]))


def safe_name(*parts: str) -> str:
    """The parts joined by hyphens, with `_` for every character that is special in file names or globs."""
    return "-".join(re.sub(r"[^A-Za-z0-9_.]", "_", part) for part in parts)
