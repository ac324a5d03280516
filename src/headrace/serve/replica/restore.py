"""The beginning of a copy: the newest good snapshot, else nothing, if the log still has everything."""

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
    """Where the snapshots are that a log goes on from, on whichever node they were made."""
    return settings.snapshots / log.id


def snapshots_of(settings: Settings, log: Log) -> Snapshots:
    """The snapshots that a log goes on from."""
    return Snapshots(snapshots_root(settings, log))


def made_at(snapshot: StoreSnapshot) -> datetime:
    """When a snapshot was finished."""
    return datetime.fromtimestamp((snapshot.folder / MANIFEST).stat().st_mtime, UTC)


def begin(settings: Settings, endpoint: Endpoint, log: Log, folder: Path, *, after: int = 0) -> Path:
    """Put what a new copy begins with into a folder: from there the log can be followed.

    A snapshot must be newer than `after`, and the log must go on from it. A ProjectError when there is none and the
    log was cut off: then nothing tells what is missing, and nothing is served.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    found = snapshots_of(settings, log).restore(endpoint, folder)
    first = log.begin()
    if found is not None and found.position > after and found.position >= first - 1:
        return folder
    if found is not None:
        folders.remove(folder)
    if first > 1:
        raise ProjectError(
            "log-cut",
            f"the log of endpoint '{endpoint.name}' v{endpoint.version} begins at {first}, and no snapshot reaches it",
            hint=f"restore a snapshot in {snapshots_root(settings, log)}, or let the flow write the endpoint anew: "
            "headrace run --new-generation FLOW",
        )
    folder.mkdir()
    return folder
