"""Which folder answers for which version of an endpoint: one small file per endpoint, written by the applier alone.

Readers look at it again and again, so a store that was built anew, or a new version, is taken up without a word.
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
    """The version that is served to those who name none, once it is ready, and the folders of all that are."""

    version: int | None = None
    folders: Mapping[int, str] = field(default_factory=dict)

    def folder(self, version: int | None) -> str | None:
        """The folder that answers for a version, or for the served one."""
        wanted = self.version if version is None else version
        return None if wanted is None else self.folders.get(wanted)


def pointer_file(home: Path) -> Path:
    """Where the pointer of an endpoint is; `home` is the endpoint's folder in the store."""
    return home / _FILE


def read_pointer(home: Path) -> Pointer:
    """What is served; nothing when there is no pointer."""
    try:
        said = json.loads(pointer_file(home).read_bytes())
    except (OSError, ValueError):
        return Pointer()
    return Pointer(said["version"], {int(version): folder for version, folder in said["folders"].items()})


def write_pointer(home: Path, pointer: Pointer) -> None:
    """Let readers go by this from now on."""
    said = {
        "version": pointer.version,
        "folder": pointer.folder(None),
        "folders": {str(version): folder for version, folder in pointer.folders.items()},
    }
    write_atomically(pointer_file(home), json.dumps(said).encode())


def distrust(store: Path) -> None:
    """Let nobody read any store until the applier has looked through it."""
    for file in store.glob(f"*/{_FILE}"):
        write_pointer(file.parent, Pointer(read_pointer(file.parent).version))


def report_damage(folder: Path, reason: str) -> None:
    """Tell the applier that what is in a store's folder is wrong: only it may put it aside and build a new one."""
    write_atomically(_report(folder), reason.encode(), durable=False)


def reported_damage(folder: Path) -> str | None:
    """What a reader found wrong."""
    try:
        return _report(folder).read_text(encoding="utf-8")
    except OSError:
        return None


def forget_report(folder: Path) -> None:
    """The store is no longer there, or was found to be well."""
    _report(folder).unlink(missing_ok=True)


def _report(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}{_REPORT}")
