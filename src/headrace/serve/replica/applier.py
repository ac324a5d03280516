"""The process of a serve node that writes: it applies every log to a store, reports progress and creates snapshots.

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
from headrace.serve.replica.corruption_flag import clear_flag, flag_reason
from headrace.serve.replica.follower import LogFollower
from headrace.serve.replica.pointers import Pointer, pointer_file, read_pointer, withdraw_stores, write_pointer
from headrace.serve.replica.snapshots import SnapshotThread

_LOG = logging.getLogger(__name__)

_NEAR_SECONDS, _FAR_SECONDS = 0.3, 3.0
"""How often to look for new endpoints and versions, on a disk or an object store."""
_STATUS_SECONDS = 0.3
_END_SECONDS = 3.0

Key = tuple[str, int]


class Applier:
    """Applies the logs of all endpoints of one node."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._logs = settings.logs
        self._followers: dict[Key, LogFollower] = {}
        self._aliases: dict[str, int | None] = {}
        self._pointing = threading.RLock()
        self._note: str | None = None
        self._saver = SnapshotThread(settings, lambda: list(self._followers.values()))

    def run(self, stopping: threading.Event) -> None:
        """Apply until `stopping` is set."""
        store = self._settings.store
        with locked(store / "applier.lock", "applier", patience=STOP_SECONDS):
            self._write_status()  # replaces the status of an earlier applier
            self._check_if_flagged()
            self._saver.start()
            try:
                self._keep(stopping)
            finally:
                self._write_status()
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
                self._find_endpoints()
                due = time.monotonic() + pause
            self._check_if_flagged()
            self._write_status()
            stopping.wait(_STATUS_SECONDS)

    def _find_endpoints(self) -> None:
        """Follow new endpoints and versions, drop removed ones. A log that cannot be read is retried soon."""
        try:
            versions = {
                (name, version.number): version for name in self._logs.names() for version in self._logs.details(name)
            }
            aliases = {name: self._logs.served(name) for name, _ in versions}
            self._note = None
        except (OSError, ValueError, KeyError, ProjectError) as error:
            message = self._settings.redact(str(error))
            self._note = f"the logs in {self._settings.log} cannot be read: {message}"
            return
        changed = {name for name, version in aliases.items() if self._aliases.get(name) != version}
        self._aliases = aliases
        for key in [key for key in self._followers if self._is_gone(key, versions.get(key))]:
            self._forget(*key)
        for key, version in versions.items():
            self._follow(key, version)
        for name in changed:
            self._point(name)

    def _is_gone(self, key: Key, version: Version | None) -> bool:
        """Whether a version was dropped or recreated. An invisible one may just be on an unavailable disk."""
        return self._logs.is_dropped(*key) if version is None else version.id != self._followers[key].log.id

    def _follow(self, key: Key, listed: Version) -> None:
        name, version = key
        endpoint, log = listed.endpoint, self._logs.log(listed)
        follower = self._followers.get(key)
        if follower is not None:
            follower.redefine(endpoint)
            return
        home = self._settings.store / name
        served = read_pointer(home).folder(version)
        current = None if served is None else home / served
        if current is not None and not (current.is_dir() and current.name.startswith(folders.prefix(version, log.id))):
            current = None
        follower = LogFollower(self._settings, endpoint, log, current, lambda: self._point(name))
        self._followers[key] = follower
        folders.tidy(home, version, log.id, current)
        follower.start()

    def _forget(self, name: str, version: int) -> None:
        """Remove a dropped version."""
        follower = self._followers.pop((name, version))
        self._point(name)
        follower.close()
        home = self._settings.store / name
        for folder in folders.copies(home, version, follower.log.id):
            folders.remove(folder)
        if not any(other == name for other, _ in self._followers):
            pointer_file(home).unlink(missing_ok=True)

    def _point(self, name: str) -> None:
        """Update the pointer for readers. They get the alias's version once it has caught up."""
        with self._pointing:
            home = self._settings.store / name
            own = {version: follower for (other, version), follower in list(self._followers.items()) if other == name}
            ready = {version: follower.served.name for version, follower in own.items() if follower.served is not None}
            now = Pointer(_chosen(self._aliases.get(name), read_pointer(home).version, ready), ready)
            if now != read_pointer(home):
                write_pointer(home, now)

    def _check_if_flagged(self) -> None:
        """After a crash in native code: check all stores before they are read again."""
        reason = flag_reason(self._settings.store)
        if reason is None:
            return
        _LOG.warning("%s: all stores are checked", reason)
        withdraw_stores(self._settings.store)
        clear_flag(self._settings.store)
        for follower in self._followers.values():
            follower.check()

    def _write_status(self) -> None:
        endpoints: dict[str, dict[str, Any]] = {}
        for (name, version), follower in sorted(self._followers.items()):
            endpoint = endpoints.setdefault(name, {"versions": {}})
            endpoint["versions"][str(version)] = follower.to_json()
        for name, endpoint in endpoints.items():
            pointer = read_pointer(self._settings.store / name)
            versions = [int(version) for version in endpoint["versions"]]
            main = pointer.version or self._aliases.get(name) or max(versions)
            shown = endpoint["versions"].get(str(main), endpoint["versions"][str(max(versions))])
            endpoints[name] = {**shown, "alias": self._aliases.get(name), "versions": endpoint["versions"]}
        try:
            write_status(self._settings.store, endpoints, self._note)
        except OSError as error:
            _LOG.warning("the status cannot be written: %s", error.strerror)


def _chosen(alias: int | None, before: int | None, ready: Collection[int]) -> int | None:
    """The version to serve: the alias's; until it can answer, the previous one, even if that cannot answer either."""
    if alias is None:
        return max(ready, default=before)
    return alias if alias in ready or before is None else before


def main() -> int:
    logging.basicConfig(level=logging.WARNING, format="applier: %(message)s")
    return run_until_stopped(lambda stopping: Applier(Settings.here()).run(stopping))


if __name__ == "__main__":
    sys.exit(main())
