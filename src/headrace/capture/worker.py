"""Captures a table group in a thread, retries while its source is unavailable, and reports its status."""

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
    """Captures one table group until it is stopped."""

    group: str
    tables: Mapping[str, TableSpec]
    context: Context
    folder: Path
    """Of copies and status files."""
    restart: RestartSpec = field(default_factory=RestartSpec)
    redact: Callable[[str], str] = str
    """Hides secrets in messages of other systems."""
    progress: Progress = field(default_factory=Progress, init=False)
    state: State = field(default="starting", init=False)
    reason: dict[str, Any] | None = field(default=None, init=False)
    _since: str = field(default_factory=utc_now, init=False)
    _restarts: int = field(default=0, init=False)
    _rates: deque[tuple[float, int]] = field(default_factory=deque, init=False)
    _stopping: Event = field(default_factory=Event, init=False)
    _threads: tuple[Thread, ...] = field(default=(), init=False)

    def start(self) -> None:
        """Start two threads: one captures, one writes the status."""
        worker = Thread(target=self._work, name=f"capture {self.group}", daemon=True)
        reporter = Thread(target=self._report, args=(worker,), name=f"status of {self.group}", daemon=True)
        self._threads = (worker, reporter)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Request the end, after the commit in progress."""
        self._stopping.set()

    def join(self, seconds: float) -> bool:
        """Wait for the end of its threads; whether they have ended in time."""
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
                continue  # another process wrote to the log: continue after its commits
            except Exception as error:
                self._failed(error)
                failures = 0 if self.progress.sequence > before else failures
                self._stopping.wait(backoff.pause(failures))
                failures += 1
        self._set_state("stopped", self.reason)

    def _alive(self) -> None:
        complete = self.progress.complete >= self.tables.keys()
        self._set_state("running" if complete else "snapshot", None)

    def _failed(self, error: Exception) -> None:
        """Record why the capture failed; print it only when the reason is new."""
        known = error if isinstance(error, ProjectError) else _unexpected(error)
        transient = known.exit_code is Exit.TRANSIENT
        reason = {"code": known.code, "text": self.redact(known.message), "hint": known.hint, "transient": transient}
        self._restarts += 1
        if self.reason != reason:
            text = str(known) if known is error else "".join(traceback.format_exception(error))
            print(self.redact(f"{self.group}: {text}"), file=sys.stderr, flush=True)
        self._set_state("degraded", reason)

    def _set_state(self, state: State, reason: dict[str, Any] | None) -> None:
        if (state, reason) != (self.state, self.reason):
            self.state, self.reason, self._since = state, reason, utc_now()

    def _report(self, worker: Thread) -> None:
        """Write the status once a second, and at the end."""
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
        """Weighted rows per second in the last ten seconds."""
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
        hint="it is retried; logs/capture.log in the state folder has the details",
        exit_code=Exit.TRANSIENT,
    )
