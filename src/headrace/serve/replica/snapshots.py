"""Snapshots of a node's stores: creates and checks them, removes old ones and truncates the log behind them.

Several nodes can share one folder of snapshots: the first node that finds the newest one too old creates the next. Any
process that can write to the store folder can request a snapshot with a small file, which another file answers.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headrace.core.errors import Exit, ProjectError
from headrace.core.files.state_files import write_atomically
from headrace.serve.base.settings import Settings
from headrace.serve.replica.follower import LogFollower
from headrace.serve.replica.pointers import report_damage
from headrace.serve.replica.restore import created_at, snapshots_of
from headrace.store.lmdb.errors import StoreDamagedError

_LOG = logging.getLogger(__name__)
_LOOK_SECONDS = 0.5
_END_SECONDS, _AGAIN_SECONDS = 3.0, 5.0
_REQUEST, _REPLY = ".snapshot-asked", ".snapshot-made"


class SnapshotThread:
    """A thread that creates a snapshot of each store when one is due or requested."""

    def __init__(self, settings: Settings, followers: Callable[[], Sequence[LogFollower]]) -> None:
        self._settings = settings
        self._followers = followers
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="snapshots", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop; an unfinished snapshot is abandoned with the process, and ignored by its readers."""
        self._stopping.set()
        self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_SECONDS):
            for follower in self._followers():
                if self._stopping.is_set():
                    return
                self._serve_follower(follower)

    def _serve_follower(self, follower: LogFollower) -> None:
        home, version = self._settings.store / follower.endpoint.name, follower.endpoint.version
        requests = list(home.glob(f"*-v{version}{_REQUEST}"))
        try:
            answer: dict[str, Any] = {"position": self._position(follower, bool(requests))}
        except Exception as error:  # unavailable store, full disk: the next attempt may succeed
            reason = self._settings.redact(f"{type(error).__name__}: {error}")
            reason = error.message if isinstance(error, ProjectError) else reason
            _LOG.warning("no snapshot of %s: %s", follower.endpoint.name, reason)
            self._stopping.wait(_AGAIN_SECONDS)
            answer = {"error": reason}
        if follower.state == "ready" or "error" in answer:
            for request in requests:
                write_atomically(request.with_suffix(_REPLY), json.dumps(answer).encode(), durable=False)
                request.unlink(missing_ok=True)

    def _position(self, follower: LogFollower, requested: bool) -> int:
        """The position of the newest snapshot, after creating one if it is due or requested."""
        if follower.snapshot is None or self._is_due(follower, requested):
            self._find_newest(follower)  # another node may have created one
        if self._is_due(follower, requested):
            save(self._settings, follower)
        return follower.snapshot[0] if follower.snapshot else 0

    def _find_newest(self, follower: LogFollower) -> None:
        newest = snapshots_of(self._settings, follower.log).newest(follower.endpoint)
        if newest is not None:
            follower.snapshot = (newest.position, created_at(newest))
        elif follower.snapshot is None:  # the first snapshot is due one interval from now
            follower.snapshot = (0, datetime.now(UTC))

    def _is_due(self, follower: LogFollower, requested: bool) -> bool:
        if follower.snapshot is None:
            return False
        position, at = follower.snapshot
        due = requested or datetime.now(UTC) - at >= self._settings.spec.snapshots.every
        return due and follower.state == "ready" and follower.position > position


def save(settings: Settings, follower: LogFollower) -> None:
    """Create a snapshot of an intact store, and truncate the log before the oldest retained snapshot."""
    snapshots, keep = snapshots_of(settings, follower.log), settings.spec.snapshots.keep
    with follower.writer() as writer:
        if writer is None:
            return
        try:
            snapshot = snapshots.save(writer)
        except StoreDamagedError as damage:
            report_damage(writer.folder, str(damage))
            name = follower.endpoint.name
            raise ProjectError("store-damaged", f"the store of endpoint '{name}' is damaged: {damage}") from damage
    follower.snapshot = (snapshot.position, created_at(snapshot))
    retained = snapshots.newest_first(follower.endpoint)[:keep]
    follower.log.cut(retained[-1].position)
    snapshots.prune(follower.endpoint, keep)


def request_snapshot(store: Path, name: str, version: int, seconds: float) -> int:
    """Have the node that uses a store create a snapshot of an endpoint now; returns its position."""
    request = store / name / f"{uuid.uuid4().hex[:8]}-v{version}{_REQUEST}"
    write_atomically(request, b"", durable=False)
    reply = request.with_suffix(_REPLY)
    deadline = time.monotonic() + seconds
    try:
        while not reply.exists():
            if time.monotonic() > deadline:
                raise ProjectError(
                    "snapshot-timeout",
                    f"no snapshot of endpoint '{name}' was created within {seconds:.0f} s",
                    hint="check: headrace status; wait longer with --timeout",
                    exit_code=Exit.TIMEOUT,
                )
            time.sleep(0.05)
        answer = json.loads(reply.read_bytes())
    finally:
        request.unlink(missing_ok=True)
        reply.unlink(missing_ok=True)
    if "error" in answer:
        raise ProjectError("snapshot-failed", f"no snapshot of endpoint '{name}': {answer['error']}")
    return int(answer["position"])
