"""Which folder serves which version of an endpoint: one small file per endpoint, written only by the applier.

Readers check the file regularly, so they switch to a rebuilt store or a new version without further notice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace.core.files.state_files import write_atomically

_FILE, _REPORT = "current.json", ".damaged"


@dataclass(frozen=True)
class Pointer:
    """The version served by default, once it is ready, and the folders of all ready versions."""

    version: int | None = None
    folders: Mapping[int, str] = field(default_factory=dict)

    def folder(self, version: int | None) -> str | None:
        chosen = self.version if version is None else version
        return None if chosen is None else self.folders.get(chosen)


def pointer_file(home: Path) -> Path:
    """The pointer file of an endpoint; `home` is the endpoint's folder in the store."""
    return home / _FILE


def read_pointer(home: Path) -> Pointer:
    """The pointer of an endpoint; an empty one when the file does not exist."""
    try:
        document = json.loads(pointer_file(home).read_bytes())
    except (OSError, ValueError):
        return Pointer()
    return Pointer(document["version"], {int(version): folder for version, folder in document["folders"].items()})


def write_pointer(home: Path, pointer: Pointer) -> None:
    document = {
        "version": pointer.version,
        "folder": pointer.folder(None),
        "folders": {str(version): folder for version, folder in pointer.folders.items()},
    }
    write_atomically(pointer_file(home), json.dumps(document).encode())


def withdraw_stores(store: Path) -> None:
    """Let no process read any store until the applier has checked it."""
    for file in store.glob(f"*/{_FILE}"):
        write_pointer(file.parent, Pointer(read_pointer(file.parent).version))


def report_damage(folder: Path, reason: str) -> None:
    """Report a damaged store to the applier: only the applier may move it away and build a new one."""
    write_atomically(_report(folder), reason.encode(), durable=False)


def reported_damage(folder: Path) -> str | None:
    try:
        return _report(folder).read_text(encoding="utf-8")
    except OSError:
        return None


def remove_report(folder: Path) -> None:
    """Remove the report: the store was removed, or is intact."""
    _report(folder).unlink(missing_ok=True)


def _report(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}{_REPORT}")
