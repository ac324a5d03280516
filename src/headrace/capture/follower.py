"""Captures a group in a thread of its own, tries again when its source is away, and says how it is."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any, Literal

from headrace.capture.group import Capture, Progress
from headrace.core.backoff import Backoff
from headrace.core.context import Context
from headrace.core.encoding.timestamps import utc_now
from headrace.core.errors import Exit, ProjectError
from headrace.log.tables import LogMovedError, group_id
from headrace.log.tablestatus import write_group
from headrace.project.model import RestartSpec
from headrace.project.tables import TableSpec

State = Literal["starting", "snapshot", "running", "degraded", "stopped"]
_WRITE_SECONDS, _RATE_SECONDS = 1.0, 10.0


@dataclass
class CaptureWorker:
    """Captures one group until it is told to stop."""

    group: str
    tables: Mapping[str, TableSpec]
    context: Context
    folder: Path
    """Where copies are, and where it says how it is."""
    restart: RestartSpec = field(default_factory=RestartSpec)
    redact: Callable[[str], str] = str
    """Hides secrets in what other systems said."""
    progress: Progress = field(default_factory=Progress, init=False)
    state: State = field(default="starting", init=False)
    reason: dict[str, Any] | None = field(default=None, init=False)
    _since: str = field(default_factory=utc_now, init=False)
    _restarts: int = field(default=0, init=False)
    _rates: deque[tuple[float, int]] = field(default_factory=deque, init=False)
    _stopping: Event = field(default_factory=Event, init=False)
    _threads: tuple[Thread, ...] = field(default=(), init=False)

    def start(self) -> None:
        """Begin: one thread captures, one tells."""
        worker = Thread(target=self._work, name=f"capture {self.group}", daemon=True)
        teller = Thread(target=self._tell, args=(worker,), name=f"status of {self.group}", daemon=True)
        self._threads = (worker, teller)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ask it to end once the commit in hand is done."""
        self._stopping.set()

    def join(self, seconds: float) -> bool:
        """Wait for its end; whether it came."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        backoff = Backoff(self.restart.backoff.total_seconds(), self.restart.max_backoff.total_seconds())
        failures, folder = 0, self.folder / group_id(self.group)
        while not self._stopping.is_set():
            before = self.progress.sequence
            try:
                Capture(self.group, self.tables, self.context, folder, self.progress).run(self._stopping, self._alive)
            except LogMovedError:
                continue  # another had the log for a moment: go on from what it has written
            except Exception as error:
                self._failed(error)
                failures = 0 if self.progress.sequence > before else failures
                self._stopping.wait(backoff.pause(failures))
                failures += 1
        self._be("stopped", self.reason)

    def _alive(self) -> None:
        whole = self.progress.complete >= self.tables.keys()
        self._be("running" if whole else "snapshot", None)

    def _failed(self, error: Exception) -> None:
        """Say why it does not go on; in its log only when that is news."""
        known = error if isinstance(error, ProjectError) else _unexpected(error)
        waits = known.exit_code is Exit.TRANSIENT
        reason = {"code": known.code, "text": self.redact(known.message), "hint": known.hint, "transient": waits}
        self._restarts += 1
        if self.reason != reason:
            said = str(known) if known is error else "".join(traceback.format_exception(error))
            print(self.redact(f"{self.group}: {said}"), file=sys.stderr, flush=True)
        self._be("degraded", reason)

    def _be(self, state: State, reason: dict[str, Any] | None) -> None:
        if (state, reason) != (self.state, self.reason):
            self.state, self.reason, self._since = state, reason, utc_now()

    def _tell(self, worker: Thread) -> None:
        """Write it down once a second, and at the end."""
        while worker.is_alive():
            self._write()
            worker.join(_WRITE_SECONDS)
        self._write()

    def _write(self) -> None:
        try:
            write_group(self.folder, self.group, self.document())
        except OSError as error:
            print(f"{self.group}: its status cannot be written: {error}", file=sys.stderr, flush=True)

    def document(self) -> dict[str, Any]:
        progress = self.progress
        tables = {
            name: {"rows": progress.counts.get(name), "complete": name in progress.complete} for name in self.tables
        }
        return {
            "pid": os.getpid(),
            "state": self.state,
            "reason": self.reason,
            "since": self._since,
            "restarts": self._restarts,
            "sequence": progress.sequence,
            "position": progress.position,
            "changes": progress.changes,
            "changes_per_s": self._rate(),
            "lag": progress.lag,
            "caught_up": progress.caught_up and self.state == "running",
            "newest": progress.newest,
            "tables": tables,
        }

    def _rate(self) -> float | None:
        """Weighted rows per second of the last ten."""
        now = time.monotonic()
        self._rates.append((now, self.progress.changes))
        while now - self._rates[0][0] > _RATE_SECONDS:
            self._rates.popleft()
        began, before = self._rates[0]
        return round((self.progress.changes - before) / (now - began), 1) if now > began else None


def _unexpected(error: Exception) -> ProjectError:
    return ProjectError(
        "table-capture-failed",
        f"{type(error).__name__}: {error}",
        hint="it is tried again; logs/capture.log in the state folder says more",
        exit_code=Exit.TRANSIENT,
    )
