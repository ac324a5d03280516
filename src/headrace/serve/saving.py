"""Snapshots of a node's stores: made in turn, checked first, old ones removed, the log cut off behind them.

Several nodes may keep their snapshots in one place: whoever finds the newest one old enough makes the next.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from headrace.core.errors import ProjectError
from headrace.serve.checking import damage_in
from headrace.serve.follower import Follower
from headrace.serve.hydrate import snapshots_of
from headrace.serve.pointers import report_damage
from headrace.serve.settings import Settings

_LOG = logging.getLogger(__name__)
_LOOK_SECONDS = 1.0


class Saver:
    """A thread that makes a snapshot of each store whenever one is due."""

    def __init__(self, settings: Settings, followers: Callable[[], Sequence[Follower]]) -> None:
        self._settings = settings
        self._followers = followers
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="snapshots", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End after the snapshot that is being made."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_SECONDS):
            for follower in self._followers():
                if self._stopping.is_set():
                    return
                self._tend(follower)

    def _tend(self, follower: Follower) -> None:
        try:
            if follower.snapshot is None:
                self._look(follower)
            if self._is_due(follower):
                self._look(follower)  # another node may have made one
                if self._is_due(follower):
                    save(self._settings, follower)
        except (OSError, ProjectError) as error:
            said = self._settings.redact(str(error))
            _LOG.warning("no snapshot of %s: %s", follower.endpoint.name, said)
            self._stopping.wait(_LOOK_SECONDS)

    def _look(self, follower: Follower) -> None:
        found = snapshots_of(self._settings, follower.endpoint, follower.log).newest(follower.endpoint)
        follower.snapshot = (0, datetime.now(UTC)) if found is None else (found.position, found.at)

    def _is_due(self, follower: Follower) -> bool:
        assert follower.snapshot is not None
        position, at = follower.snapshot
        old = datetime.now(UTC) - at >= self._settings.spec.snapshots.every
        return old and follower.state == "ready" and follower.position > position


def save(settings: Settings, follower: Follower) -> bool:
    """Make a snapshot of a store that was found to be well; whether that was done."""
    served = follower.served
    if served is None:
        return False
    damage = damage_in(served)
    if damage is not None:
        report_damage(served, damage)
        return False
    snapshots = snapshots_of(settings, follower.endpoint, follower.log)
    with follower.writer() as writer:
        if writer is None:
            return False
        made = snapshots.save(writer)
    follower.snapshot = (made.position, made.at)
    oldest = snapshots.prune(settings.spec.snapshots.keep)
    follower.log.cut(oldest.position)
    return True
