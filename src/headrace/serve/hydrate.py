"""The beginning of a copy: the newest good snapshot, else nothing, if the log still has everything."""

from __future__ import annotations

from pathlib import Path

from headrace.core.endpoints import Endpoint
from headrace.core.errors import ProjectError
from headrace.log.log import Log
from headrace.serve.settings import Settings
from headrace.store.snapshot import Snapshots


def snapshots_of(settings: Settings, endpoint: Endpoint, log: Log) -> Snapshots:
    """The snapshots of one version of an endpoint, on whichever node they were made."""
    return Snapshots(settings.snapshots / endpoint.name / f"v{endpoint.version}-{log.id}")


def begin(settings: Settings, endpoint: Endpoint, log: Log, folder: Path, *, after: int = 0) -> Path:
    """Put what a new copy begins with into a folder: from there the log can be followed.

    A snapshot must be newer than `after`, and the log must go on from it. A ProjectError when there is none and the
    log was cut off: then nothing tells what is missing, and nothing is served.
    """
    first = log.begin()
    snapshots = snapshots_of(settings, endpoint, log)
    found = snapshots.newest(endpoint)
    if found is not None and found.position > after and found.position >= first - 1:
        snapshots.restore(found, folder)
        return folder
    if first > 1:
        raise ProjectError(
            "log-cut",
            f"the log of endpoint '{endpoint.name}' v{endpoint.version} begins at {first}, and no snapshot reaches it",
            hint=f"restore a snapshot in {snapshots.root}, or let the flow write the endpoint anew: "
            "headrace run --new-generation FLOW",
        )
    folder.mkdir(parents=True)
    return folder
