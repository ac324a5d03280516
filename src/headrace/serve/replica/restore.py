"""Starts a copy: from the newest intact snapshot, or empty if the log is complete."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from headrace.core.endpoints import Endpoint
from headrace.core.errors import ProjectError
from headrace.core.files.state_files import StatePath
from headrace.log.log import Log
from headrace.serve.base.settings import Settings
from headrace.serve.replica import folders
from headrace.store.endpoint.snapshot import MANIFEST, Snapshots, StoreSnapshot


def snapshots_root(settings: Settings, log: Log) -> StatePath:
    """The folder of the snapshots of a log, shared by all nodes."""
    return settings.snapshots / log.id


def snapshots_of(settings: Settings, log: Log) -> Snapshots:
    return Snapshots(snapshots_root(settings, log))


def created_at(snapshot: StoreSnapshot) -> datetime:
    return datetime.fromtimestamp((snapshot.folder / MANIFEST).stat().st_mtime, UTC)


def restore(settings: Settings, endpoint: Endpoint, log: Log, folder: Path, *, after: int = 0) -> Path:
    """Create the start of a new copy in a folder, from which the log can be followed.

    A snapshot must be newer than `after`, and the log must continue from it. ProjectError when there is none and the
    log was truncated: the missing changes are unknown, and nothing is served.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    snapshot = snapshots_of(settings, log).restore(endpoint, folder)
    first = log.begin()
    if snapshot is not None and snapshot.position > after and snapshot.position >= first - 1:
        return folder
    if snapshot is not None:
        folders.remove(folder)
    if first > 1:
        raise ProjectError(
            "log-cut",
            f"the log of endpoint '{endpoint.name}' v{endpoint.version} begins at {first}, and no snapshot reaches it",
            hint=f"restore a snapshot in {snapshots_root(settings, log)}, or rewrite the endpoint: "
            "headrace run --new-generation FLOW",
        )
    folder.mkdir()
    return folder
