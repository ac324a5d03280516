"""Publishing a batch of files exactly once, whatever happens on the way.

1. Spark writes the batch into a staging folder. 2. A manifest with the final name of every staged file is put in place
by one rename: from here on the batch counts as written. 3. The files are renamed to their final names. 4. The staging
folder is removed. A batch that runs again finds the manifest and goes on with step 3, or finds none and starts afresh.
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

from headrace.core.capabilities import Rewind
from headrace.core.errors import Exit, ProjectError

# <flow>-<sink>-<generation>-<batch>: no part has a hyphen of its own
_BATCH = re.compile(r"([^-]+)-([^-]+)-([^-]+)-(\d{8,})(?:-\d{4,})?(?:\.|$)")


@dataclass(frozen=True)
class Publication:
    """One batch on its way into a folder.

    Staging and manifests live in a hidden folder beside the target, not in it: no glob over the target can see them.
    """

    target: Path
    series: str
    batch_id: int

    @property
    def _workshop(self) -> Path:
        return workshop(self.target)

    @property
    def _name(self) -> str:
        return f"{self.series}-{self.batch_id:08d}"

    @property
    def staging(self) -> Path:
        """Below which Spark writes the batch."""
        return self._workshop / "staging" / self._name

    @property
    def manifest(self) -> Path:
        """There as soon as the batch counts as written."""
        return self._workshop / "commits" / f"{self._name}.json"

    def is_written(self) -> bool:
        """Whether the batch must not be written again."""
        return self.manifest.exists()

    def write(
        self,
        stage: Callable[[Path], None],
        has_rows: Callable[[Path], bool],
        place: Callable[[Path], Path | None] = lambda folder: folder,
    ) -> int:
        """Let `stage` write into an empty staging folder, then make it count; how many bytes there are.

        `place` says in which folder below the target the files of a staged folder belong; None: nowhere.
        Each attempt has a folder of its own: an engine that lost its driver may still be writing into the last one.
        """
        shutil.rmtree(self.staging, ignore_errors=True)
        attempt = self.staging / secrets.token_hex(4)
        attempt.parent.mkdir(parents=True, exist_ok=True)
        stage(attempt)
        found = sorted(path for path in attempt.rglob("*") if path.is_file() and not path.name.startswith(("_", ".")))
        places = {path: place(path.relative_to(attempt).parent) for path in filter(has_rows, found)}
        kept = [(path, folder) for path, folder in places.items() if folder is not None]
        files = {
            str(path.relative_to(self.staging)): self._final_name(folder, path.name, number)
            for number, (path, folder) in enumerate(kept)
        }
        for name in files:
            _flush(self.staging / name)
        size = sum((self.staging / name).stat().st_size for name in files)
        _put(self.manifest, json.dumps({"batch": self.batch_id, "files": files}, indent=1))
        return size

    def finish(self) -> None:
        """Move what is still staged to its final place; a file that is no longer staged is already there."""
        files: dict[str, str] = json.loads(self.manifest.read_text())["files"]
        for name, final in files.items():
            staged, published = self.staging / name, self.target / final
            if staged.exists():
                published.parent.mkdir(parents=True, exist_ok=True)
                os.replace(staged, published)
        for folder in {(self.target / final).parent for final in files.values()}:
            _flush(folder)
        shutil.rmtree(self.staging, ignore_errors=True)
        self._forget_older()

    def _final_name(self, folder: Path, staged: str, number: int) -> str:
        extension = staged.partition(".")[2]
        return str(folder / f"{self._name}-{number:04d}.{extension}")

    def _forget_older(self) -> None:
        """Spark never replays a batch once a later one of the same generation has begun."""
        for manifest in self.manifest.parent.glob(f"{self.series}-*.json"):
            number = manifest.stem.removeprefix(f"{self.series}-")
            if number.isdecimal() and int(number) < self.batch_id:
                manifest.unlink(missing_ok=True)


def workshop(target: Path) -> Path:
    """Where staging and manifests of a folder are."""
    return target.parent / f".{target.name}.headrace"


def withdrawn(target: Path, rewind: Rewind) -> list[Path]:
    """The published files of batches that a rewind takes back."""
    return [path for path in target.rglob("*") if path.is_file() and _goes(path.name, target, rewind)]


def withdraw(target: Path, rewind: Rewind) -> None:
    """Delete them, and what was about to be published: that first, or it would appear after all."""
    for part in ("commits", "staging"):
        for path in (workshop(target) / part).glob("*"):
            if _goes(path.name, target, rewind):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    for path in withdrawn(target, rewind):
        path.unlink(missing_ok=True)


def forget_others(target: Path, flow: str, sink: str, generation: str, batch_id: int) -> None:
    """Delete what a flow's sink has published in a folder, except what is of this batch."""
    kept = f"{safe_name(flow, sink, generation)}-{batch_id:08d}-"
    for path in target.rglob(f"{safe_name(flow, sink)}-*"):
        if path.is_file() and _BATCH.match(path.name) and not path.name.startswith(kept):
            path.unlink(missing_ok=True)


def _goes(name: str, target: Path, rewind: Rewind) -> bool:
    found = _BATCH.match(name)
    if found is None or [found[1], found[2]] != [safe_name(rewind.flow), safe_name(rewind.sink)]:
        return False
    if rewind.last_kept is not None and found[3].startswith("replay"):
        # these rows may come from before the target: taken back, they would be lost
        raise ProjectError(
            "rewind-replayed",
            f"dead letters of flow '{rewind.flow}' were replayed into {target}, and may be lost",
            hint="rewind to earliest, which brings them again, or without --replace",
            exit_code=Exit.CONFLICT,
        )
    return not rewind.keeps(found[3], int(found[4]))


def safe_name(*parts: str) -> str:
    """The parts joined by hyphens, without what a file name or a glob might trip over."""
    return "-".join(re.sub(r"[^A-Za-z0-9_.]", "_", part) for part in parts)


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    draft.write_text(text)
    _flush(draft)
    os.replace(draft, path)
    _flush(path.parent)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
