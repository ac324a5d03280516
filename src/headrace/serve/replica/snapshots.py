"""Snapshots of a node's stores: made in turn, checked, old ones removed, the log cut off behind them.

Several nodes may keep their snapshots in one place: whoever finds the newest one old enough makes the next. Anybody who
may write to the store folder can ask for one at once, with a small file that is answered by another.
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
from headrace.serve.replica.restore import made_at, snapshots_of
from headrace.store.lmdb.errors import StoreDamagedError

_LOG = logging.getLogger(__name__)
_LOOK_SECONDS = 0.5
_END_SECONDS, _AGAIN_SECONDS = 3.0, 5.0
_ASKED, _ANSWERED = ".snapshot-asked", ".snapshot-made"


class Saver:
    """A thread that makes a snapshot of each store whenever one is due or asked for."""

    def __init__(self, settings: Settings, followers: Callable[[], Sequence[LogFollower]]) -> None:
        self._settings = settings
        self._followers = followers
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="snapshots", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End; a snapshot that takes longer is given up with the process, and passed over by whoever finds it."""
        self._stopping.set()
        self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_SECONDS):
            for follower in self._followers():
                if self._stopping.is_set():
                    return
                self._tend(follower)

    def _tend(self, follower: LogFollower) -> None:
        home, version = self._settings.store / follower.endpoint.name, follower.endpoint.version
        asked = list(home.glob(f"*-v{version}{_ASKED}"))
        try:
            made = self._made(follower, bool(asked))
            answer: dict[str, Any] = {"position": made}
        except Exception as error:  # a store that is away, a full disk, a log that cannot be cut: the next may go well
            said = self._settings.redact(f"{type(error).__name__}: {error}")
            said = error.message if isinstance(error, ProjectError) else said
            _LOG.warning("no snapshot of %s: %s", follower.endpoint.name, said)
            self._stopping.wait(_AGAIN_SECONDS)
            answer = {"error": said}
        if follower.state == "ready" or "error" in answer:
            for question in asked:
                write_atomically(question.with_suffix(_ANSWERED), json.dumps(answer).encode(), durable=False)
                question.unlink(missing_ok=True)

    def _made(self, follower: LogFollower, asked: bool) -> int:
        """The position of the newest snapshot, after one was made if that was to be."""
        if follower.snapshot is None or self._is_due(follower, asked):
            self._look(follower)  # another node may have made one
        if self._is_due(follower, asked):
            save(self._settings, follower)
        return follower.snapshot[0] if follower.snapshot else 0

    def _look(self, follower: LogFollower) -> None:
        found = snapshots_of(self._settings, follower.log).newest(follower.endpoint)
        if found is not None:
            follower.snapshot = (found.position, made_at(found))
        elif follower.snapshot is None:  # the time counts from when there was none
            follower.snapshot = (0, datetime.now(UTC))

    def _is_due(self, follower: LogFollower, asked: bool) -> bool:
        if follower.snapshot is None:
            return False
        position, at = follower.snapshot
        old = asked or datetime.now(UTC) - at >= self._settings.spec.snapshots.every
        return old and follower.state == "ready" and follower.position > position


def save(settings: Settings, follower: LogFollower) -> None:
    """Make a snapshot, of a store that is found to be well, and cut off what is before the oldest that is kept."""
    snapshots, keep = snapshots_of(settings, follower.log), settings.spec.snapshots.keep
    with follower.writer() as writer:
        if writer is None:
            return
        try:
            made = snapshots.save(writer)
        except StoreDamagedError as damage:
            report_damage(writer.folder, str(damage))
            name = follower.endpoint.name
            raise ProjectError("store-damaged", f"the store of endpoint '{name}' is damaged: {damage}") from damage
    follower.snapshot = (made.position, made_at(made))
    kept = snapshots.newest_first(follower.endpoint)[:keep]
    follower.log.cut(kept[-1].position)
    snapshots.prune(follower.endpoint, keep)


def ask_for_snapshot(store: Path, name: str, version: int, seconds: float) -> int:
    """Have the node that keeps a store make a snapshot of an endpoint now; the position it has."""
    question = store / name / f"{uuid.uuid4().hex[:8]}-v{version}{_ASKED}"
    write_atomically(question, b"", durable=False)
    reply = question.with_suffix(_ANSWERED)
    deadline = time.monotonic() + seconds
    try:
        while not reply.exists():
            if time.monotonic() > deadline:
                raise ProjectError(
                    "snapshot-timeout",
                    f"there is no snapshot of endpoint '{name}' after {seconds:.0f} s",
                    hint="see: headrace status; wait longer with --timeout",
                    exit_code=Exit.TIMEOUT,
                )
            time.sleep(0.05)
        said = json.loads(reply.read_bytes())
    finally:
        question.unlink(missing_ok=True)
        reply.unlink(missing_ok=True)
    if "error" in said:
        raise ProjectError("snapshot-failed", f"no snapshot of endpoint '{name}': {said['error']}")
    return int(said["position"])
