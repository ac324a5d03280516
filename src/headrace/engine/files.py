"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(file: Path, content: bytes) -> None:
    """Write a small file so that readers see all of it or nothing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_name(f".{file.name}.{os.getpid()}")
    with scratch.open("wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    os.replace(scratch, file)
