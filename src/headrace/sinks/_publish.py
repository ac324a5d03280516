"""Publishing a batch of files exactly once, whatever happens on the way.

1. Spark writes the batch into a staging folder. 2. A manifest with the final name of every staged file is put in place
by one rename: from here on the batch counts as written. 3. The files are renamed to their final names. 4. The staging
folder is removed. A batch that runs again finds the manifest and goes on with step 3, or finds none and starts afresh.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


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
        return self.target.parent / f".{self.target.name}.headrace"

    @property
    def _name(self) -> str:
        return f"{self.series}-{self.batch_id:08d}"

    @property
    def staging(self) -> Path:
        """Where Spark writes the batch."""
        return self._workshop / "staging" / self._name

    @property
    def manifest(self) -> Path:
        """There as soon as the batch counts as written."""
        return self._workshop / "commits" / f"{self._name}.json"

    def is_written(self) -> bool:
        """Whether the batch must not be written again."""
        return self.manifest.exists()

    def write(self, stage: Callable[[Path], None], has_rows: Callable[[Path], bool]) -> None:
        """Let `stage` write into an empty staging folder, then make it count."""
        shutil.rmtree(self.staging, ignore_errors=True)
        self.staging.parent.mkdir(parents=True, exist_ok=True)
        stage(self.staging)
        found = sorted(
            path for path in self.staging.rglob("*") if path.is_file() and not path.name.startswith(("_", "."))
        )
        files = {
            str(path.relative_to(self.staging)): self._final_name(path, number)
            for number, path in enumerate(filter(has_rows, found))
        }
        for name in files:
            _flush(self.staging / name)
        _put(self.manifest, json.dumps({"batch": self.batch_id, "files": files}, indent=1))

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

    def _final_name(self, staged: Path, number: int) -> str:
        folder = staged.parent.relative_to(self.staging)
        extension = staged.name.partition(".")[2]
        return str(folder / f"{self._name}-{number:04d}.{extension}")

    def _forget_older(self) -> None:
        """Spark never replays a batch once a later one of the same generation has begun."""
        for manifest in self.manifest.parent.glob(f"{self.series}-*.json"):
            number = manifest.stem.removeprefix(f"{self.series}-")
            if number.isdecimal() and int(number) < self.batch_id:
                manifest.unlink(missing_ok=True)


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
