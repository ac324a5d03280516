"""The one process of a serve node that writes: it follows every log into a store, reports progress, makes snapshots.

The node starts it with `python -m headrace.serve.replica.applier`. It polls for endpoints and their versions, so it
picks up new ones and drops removed ones without a restart.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Collection
from typing import Any

from headrace.core.errors import ProjectError
from headrace.core.files.objects import ObjectPath
from headrace.core.processes.lifeline import STOP_SECONDS, run_until_stopped
from headrace.log.folder import Version
from headrace.serve.base.lock import locked
from headrace.serve.base.settings import Settings
from headrace.serve.base.status import write_status
from headrace.serve.replica import folders
from headrace.serve.replica.corruption_flag import cleared, suspected
from headrace.serve.replica.follower import LogFollower
from headrace.serve.replica.pointers import Pointer, distrust, pointer_file, read_pointer, write_pointer
from headrace.serve.replica.snapshots import Saver

_LOG = logging.getLogger(__name__)

_NEAR_SECONDS, _FAR_SECONDS = 0.3, 3.0
"""How often it is looked whether there are other endpoints or versions, on a disk or an object store."""
_SAY_SECONDS = 0.3
_END_SECONDS = 3.0

Key = tuple[str, int]


class Applier:
    """All copies of one node."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._logs = settings.logs
        self._followers: dict[Key, LogFollower] = {}
        self._aliases: dict[str, int | None] = {}
        self._pointing = threading.RLock()
        self._note: str | None = None
        self._saver = Saver(settings, lambda: list(self._followers.values()))

    def run(self, stopping: threading.Event) -> None:
        """Follow until it is told to stop."""
        store = self._settings.store
        with locked(store / "applier.lock", "applier", patience=STOP_SECONDS):
            self._say()  # what a former applier said no longer holds
            self._check_if_suspected()
            self._saver.start()
            try:
                self._keep(stopping)
            finally:
                self._say()
                for follower in self._followers.values():
                    follower.stop()
                self._saver.close()
                for follower in self._followers.values():
                    follower.close(_END_SECONDS)

    def _keep(self, stopping: threading.Event) -> None:
        pause = _FAR_SECONDS if isinstance(self._settings.log, ObjectPath) else _NEAR_SECONDS
        due = 0.0
        while not stopping.is_set():
            if time.monotonic() >= due:
                self._look()
                due = time.monotonic() + pause
            self._check_if_suspected()
            self._say()
            stopping.wait(_SAY_SECONDS)

    def _look(self) -> None:
        """What endpoints and versions there are now. What cannot be read now is looked at again soon."""
        try:
            found = {(name, one.number): one for name in self._logs.names() for one in self._logs.details(name)}
            aliases = {name: self._logs.served(name) for name, _ in found}
            self._note = None
        except (OSError, ValueError, KeyError, ProjectError) as error:
            said = self._settings.redact(str(error))
            self._note = f"the logs in {self._settings.log} cannot be read: {said}"
            return
        changed = {name for name, version in aliases.items() if self._aliases.get(name) != version}
        self._aliases = aliases
        for key in [key for key in self._followers if self._is_gone(key, found.get(key))]:
            self._forget(*key)
        for key, one in found.items():
            self._follow(key, one)
        for name in changed:
            self._point(name)

    def _is_gone(self, key: Key, found: Version | None) -> bool:
        """Whether a version was dropped or begun anew. One that just cannot be seen may be on a disk that is away."""
        return self._logs.is_dropped(*key) if found is None else found.id != self._followers[key].log.id

    def _follow(self, key: Key, found: Version) -> None:
        name, version = key
        endpoint, log = found.endpoint, self._logs.log(found)
        follower = self._followers.get(key)
        if follower is not None:
            follower.redefine(endpoint)
            return
        home = self._settings.store / name
        served = read_pointer(home).folder(version)
        kept = None if served is None else home / served
        if kept is not None and not (kept.is_dir() and kept.name.startswith(folders.prefix(version, log.id))):
            kept = None
        follower = LogFollower(self._settings, endpoint, log, kept, lambda: self._point(name))
        self._followers[key] = follower
        folders.tidy(home, version, log.id, kept)
        follower.start()

    def _forget(self, name: str, version: int) -> None:
        """A version that was dropped."""
        follower = self._followers.pop((name, version))
        self._point(name)
        follower.close()
        home = self._settings.store / name
        for folder in folders.copies(home, version, follower.log.id):
            folders.remove(folder)
        if not any(other == name for other, _ in self._followers):
            pointer_file(home).unlink(missing_ok=True)

    def _point(self, name: str) -> None:
        """Let readers find what may be served. The version they get is the alias's, once that has caught up."""
        with self._pointing:
            home = self._settings.store / name
            mine = {version: one for (other, version), one in list(self._followers.items()) if other == name}
            ready = {version: one.served.name for version, one in mine.items() if one.served is not None}
            now = Pointer(_chosen(self._aliases.get(name), read_pointer(home).version, ready), ready)
            if now != read_pointer(home):
                write_pointer(home, now)

    def _check_if_suspected(self) -> None:
        """After a crash in native code: look through all stores before they are trusted again."""
        reason = suspected(self._settings.store)
        if reason is None:
            return
        _LOG.warning("%s: all stores are checked", reason)
        distrust(self._settings.store)
        cleared(self._settings.store)
        for follower in self._followers.values():
            follower.check()

    def _say(self) -> None:
        said: dict[str, dict[str, Any]] = {}
        for (name, version), follower in sorted(self._followers.items()):
            one = said.setdefault(name, {"versions": {}})
            one["versions"][str(version)] = follower.to_json()
        for name, one in said.items():
            pointer = read_pointer(self._settings.store / name)
            versions = [int(version) for version in one["versions"]]
            main = pointer.version or self._aliases.get(name) or max(versions)
            shown = one["versions"].get(str(main), one["versions"][str(max(versions))])
            said[name] = {**shown, "alias": self._aliases.get(name), "versions": one["versions"]}
        try:
            write_status(self._settings.store, said, self._note)
        except OSError as error:
            _LOG.warning("the status cannot be written: %s", error.strerror)


def _chosen(alias: int | None, before: int | None, ready: Collection[int]) -> int | None:
    """The version to serve: the alias's; until that can answer, the one before, also when neither can now."""
    if alias is None:
        return max(ready, default=before)
    return alias if alias in ready or before is None else before


def main() -> int:
    """The applier as a process that ends with its node."""
    logging.basicConfig(level=logging.WARNING, format="applier: %(message)s")
    return run_until_stopped(lambda told: Applier(Settings.here()).run(told))


if __name__ == "__main__":
    sys.exit(main())
