"""Background threads, so that slow work never blocks the thread that supervises the flows."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from headrace.engine.state.utc import utc_now
from headrace.engine.supervise.observers import Observer
from headrace.plan.model import FlowPlan

Result = TypeVar("Result")

_MAX_NOTES = 20
_MAX_WAITING = 10_000


class Notes:
    """Problems outside the flows, newest last: one note per subject, a bounded number of them."""

    def __init__(self) -> None:
        self._notes: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()

    def add(self, about: str, text: str) -> None:
        """Add a note. It replaces the previous note about the same subject and counts it."""
        with self._lock:
            before = self._notes.pop(about, None)
            count = 1 + (before["count"] if before else 0)
            at = utc_now("seconds")
            self._notes[about] = {"about": about, "text": text[:500], "at": at, "count": count}
            while len(self._notes) > _MAX_NOTES:
                del self._notes[next(iter(self._notes))]

    def all(self) -> list[dict[str, Any]]:
        with self._lock:
            return list(self._notes.values())


def run_in_background(work: Callable[[], Result]) -> Future[Result]:
    """Run slow work in a daemon thread. The end of the process does not wait for it."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # the caller gets it from the future
            future.set_exception(error)

    threading.Thread(target=run, name="headrace background", daemon=True).start()
    return future


class PeriodicTask:
    """Repeats work every few seconds until it is closed. A failure is noted and the work is repeated."""

    def __init__(self, name: str, seconds: float, work: Callable[[], None], notes: Notes) -> None:
        self._name, self._seconds, self._work, self._notes = name, seconds, work, notes
        self._closing = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"headrace {name}", daemon=True)
        self._thread.start()

    def run_now(self) -> None:
        """Run at once instead of when the work is due."""
        self._wake.set()

    def close(self, seconds: float = 5.0) -> None:
        """Stop repeating, and wait up to `seconds` for the current run to end."""
        self._closing.set()
        self._wake.set()
        self._thread.join(seconds)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._work()
            except Exception as error:  # any failure: the next run must still happen
                self._notes.add(self._name, f"{type(error).__name__}: {error}")
            self._wake.wait(self._seconds)
            self._wake.clear()


class ObserverThread:
    """Notifies observers of finished batches, in order, in a separate thread."""

    def __init__(self, observers: Sequence[Observer], notes: Notes) -> None:
        self._observers = list(observers)
        self._notes = notes
        self._queue: queue.Queue[tuple[FlowPlan, Mapping[str, Any]] | None] = queue.Queue(_MAX_WAITING)
        self._thread = threading.Thread(target=self._run, name="headrace observers", daemon=True)
        self._thread.start()

    def notify(self, flow: FlowPlan, report: Mapping[str, Any]) -> None:
        """Report a finished batch. Never blocks: observers that are thousands of batches behind miss it (noted)."""
        try:
            self._queue.put_nowait((flow, report))
        except queue.Full:
            self._notes.add("observers", f"too slow: batch {report['batchId']} of {flow.name} was not reported to them")

    def close(self, seconds: float) -> None:
        """Report what is still queued, then close each observer."""
        deadline = time.monotonic() + seconds
        try:
            self._queue.put(None, timeout=seconds)
        except queue.Full:
            self._notes.add("observers", "too slow: the last batches were not reported to them")
        self._thread.join(max(0.1, deadline - time.monotonic()))

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            for observer in self._observers:
                self._guarded(observer, lambda each, item=item: each.batch_done(*item))  # type: ignore[misc]
        for observer in self._observers:
            self._guarded(observer, lambda each: each.close())

    def _guarded(self, observer: Observer, call: Callable[[Observer], None]) -> None:
        try:
            call(observer)
        except Exception as error:  # an observer's failure must not fail the flow
            self._notes.add(type(observer).__name__, f"{type(error).__name__}: {error}")
