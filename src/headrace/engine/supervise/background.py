"""Work beside the thread that tends the flows, so that nothing slow is ever in its way."""

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

Answer = TypeVar("Answer")

_MOST_NOTES = 20
_MOST_WAITING = 10_000


class Notes:
    """What went wrong beside the flows, newest last; one note per place, a bounded number of them."""

    def __init__(self) -> None:
        self._notes: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()

    def add(self, about: str, text: str) -> None:
        """Note something; the same place says only its last word."""
        with self._lock:
            before = self._notes.pop(about, None)
            count = 1 + (before["count"] if before else 0)
            at = utc_now("seconds")
            self._notes[about] = {"about": about, "text": text[:500], "at": at, "count": count}
            while len(self._notes) > _MOST_NOTES:
                del self._notes[next(iter(self._notes))]

    def all(self) -> list[dict[str, Any]]:
        """All of them."""
        with self._lock:
            return list(self._notes.values())


def ask(question: Callable[[], Answer]) -> Future[Answer]:
    """The answer to a question that may take long; nobody waits for it, not even at the end of the process."""
    future: Future[Answer] = Future()

    def answer() -> None:
        try:
            future.set_result(question())
        except BaseException as error:  # whoever asks shall see it
            future.set_exception(error)

    threading.Thread(target=answer, name="headrace look", daemon=True).start()
    return future


class Periodic:
    """Does something every few seconds until it is closed; what goes wrong is noted, and it goes on."""

    def __init__(self, name: str, seconds: float, work: Callable[[], None], notes: Notes) -> None:
        self._name, self._seconds, self._work, self._notes = name, seconds, work, notes
        self._closing = threading.Event()
        self._wanted = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"headrace {name}", daemon=True)
        self._thread.start()

    def soon(self) -> None:
        """Do it now instead of when it is due."""
        self._wanted.set()

    def close(self, seconds: float = 5.0) -> None:
        """Do it no more; wait for the last time to end, but not for ever."""
        self._closing.set()
        self._wanted.set()
        self._thread.join(seconds)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._work()
            except Exception as error:  # whatever it is: it must not end the work that goes on
                self._notes.add(self._name, f"{type(error).__name__}: {error}")
            self._wanted.wait(self._seconds)
            self._wanted.clear()


class Teller:
    """Tells observers of batches, one after the other, from a thread of its own."""

    def __init__(self, observers: Sequence[Observer], notes: Notes) -> None:
        self._observers = list(observers)
        self._notes = notes
        self._queue: queue.Queue[tuple[FlowPlan, Mapping[str, Any]] | None] = queue.Queue(_MOST_WAITING)
        self._thread = threading.Thread(target=self._run, name="headrace observers", daemon=True)
        self._thread.start()

    def tell(self, flow: FlowPlan, report: Mapping[str, Any]) -> None:
        """Pass on that a batch is done. Never waits: observers that are thousands behind miss it, which is noted."""
        try:
            self._queue.put_nowait((flow, report))
        except queue.Full:
            self._notes.add("observers", f"too slow; not told of batch {report['batchId']} of {flow.name}")

    def close(self, seconds: float) -> None:
        """Tell what is still waiting, then let each observer close."""
        deadline = time.monotonic() + seconds
        try:
            self._queue.put(None, timeout=seconds)
        except queue.Full:
            self._notes.add("observers", "too slow; they were not told of the last batches")
        self._thread.join(max(0.1, deadline - time.monotonic()))

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            for observer in self._observers:
                self._guarded(observer, lambda one, item=item: one.batch_done(*item))  # type: ignore[misc]
        for observer in self._observers:
            self._guarded(observer, lambda one: one.close())

    def _guarded(self, observer: Observer, call: Callable[[Observer], None]) -> None:
        try:
            call(observer)
        except Exception as error:  # an observer's fault is never the flow's
            self._notes.add(type(observer).__name__, f"{type(error).__name__}: {error}")
