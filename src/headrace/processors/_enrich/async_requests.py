"""Sends many requests to a service at once, and repeats them while it is unavailable. Runs in a Python worker."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Literal

from headrace.core.errors import ProjectError
from headrace.core.runtime.backoff import Backoff
from headrace.core.tallies.step_tally import StepTally
from headrace.systems.services import service_unavailable

FailureClass = Literal["4xx", "404", "5xx", "timeout", "other"]

PROBE_SECONDS = 2.0
_LONGEST_BACKOFF = 5.0
_LONGEST_RETRY_AFTER = 30.0
_PROBE_EVERY = 1.0


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """A request without an answer: `reason` is a stable code, `detail` is for people and contains no secret."""

    reason: str
    detail: str
    failure: FailureClass = "other"
    transient: bool = False
    """Whether a repeated request may succeed."""
    unavailable: bool = False
    """Whether the service itself may be unavailable."""
    wait: float | None = None
    """How long the service asks to wait, in seconds."""


def timed_out(seconds: float) -> FailedRequest:
    return FailedRequest("timeout", f"no answer within {seconds:g} s", "timeout", transient=True, unavailable=True)


def unreachable(why: str) -> FailedRequest:
    """No connection, or a broken one."""
    return FailedRequest("connection", why, transient=True, unavailable=True)


@dataclass(frozen=True, slots=True)
class NoMatch:
    """The service knows nothing about a key: its columns become null."""

    failure: FailureClass | None = "404"


Answer = Any
"""A document, a NoMatch or a FailedRequest."""


class ServiceClient(ABC):
    """The client of one service. Pickled to the workers; connects on first use."""

    label: str
    together: int = 1
    """How many requests `call` takes at once."""
    own_timeout: ClassVar[bool] = False
    """Whether it enforces the timeout itself, which is cheaper than by the event loop."""

    @abstractmethod
    def request_for(self, values: Sequence[Any]) -> Any:
        """The request for one key; an UnfitValueError names a value that no request can contain."""

    @abstractmethod
    async def call(self, requests: Sequence[Any]) -> list[Answer]:
        """An answer to each request. A ProjectError: every request will fail until someone fixes the cause."""

    @abstractmethod
    async def probe(self) -> None:
        """A cheap health check without a key; raises if the service is unavailable."""

    @abstractmethod
    async def close(self) -> None:
        """Close all connections."""


@dataclass(frozen=True)
class RequestLimits:
    """Limits of requests to a service; times in seconds."""

    capacity: int
    timeout: float
    retries: int
    backoff: float
    give_up: float


@dataclass
class ServiceCaller:
    """Sends requests to one service. Knows its health across tasks."""

    service: ServiceClient
    limits: RequestLimits
    _answered: float = 0.0
    """When it last answered, on the monotonic clock."""
    _probed: tuple[float, bool] = (-_PROBE_EVERY, False)
    _probing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def call_all(self, requests: Sequence[Any], tally: StepTally) -> list[Answer]:
        """An answer to each request, or its failure. Raises when the service stays unavailable."""
        if not requests:
            return []
        return event_loop().run_until_complete(self._call_all(requests, tally))

    async def _call_all(self, requests: Sequence[Any], tally: StepTally) -> list[Answer]:
        answers: list[Answer] = [None] * len(requests)
        size = self.service.together
        portions = iter([range(start, min(start + size, len(requests))) for start in range(0, len(requests), size)])
        work = _Work(requests, answers, tally)
        number = min(self.limits.capacity, -(-len(requests) // size))
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(number):
                    group.create_task(self._worker(portions, work))
        except BaseExceptionGroup as failed:
            # the first failure has cancelled the other workers
            raise _first(failed) from None
        return answers

    async def _worker(self, portions: Iterator[range], work: _Work) -> None:
        for portion in portions:
            await self._send_until_final(portion, work, time.monotonic())

    async def _send_until_final(self, numbers: Sequence[int], work: _Work, began: float) -> None:
        """Repeat some requests until each has an answer or a final failure.

        A failure is final if the service is known to be available. So a request that may not have reached it gets
        another round of attempts once the service is back.
        """
        attempt, known_alive, round_began = 0, False, time.monotonic()
        while True:
            failed = await self._attempt(numbers, work)
            if not failed:
                return
            if len(numbers) > 1 and len(failed) == len(numbers) and _timed_out(failed):
                # one of them may be slow: send each alone
                for number in numbers:
                    await self._send_until_final([number], work, began)
                return
            attempt += 1
            numbers = list(failed)
            last = failed[numbers[-1]]
            if attempt > self.limits.retries:
                alive = await self._alive(round_began)
                if alive and (known_alive or not any(failure.unavailable for failure in failed.values())):
                    return
                if not alive and time.monotonic() - began > self.limits.give_up:
                    raise service_unavailable(self.service.label, last.detail)
                if alive:
                    attempt, round_began = 0, time.monotonic()
                known_alive = alive
            work.tally.add("retries", len(numbers))
            await asyncio.sleep(self._pause(attempt, last.wait))

    def _pause(self, attempt: int, wait: float | None) -> float:
        if wait is not None:
            return min(wait, _LONGEST_RETRY_AFTER)
        first = self.limits.backoff
        return Backoff(first, max(_LONGEST_BACKOFF, first)).pause(attempt - 1)

    async def _attempt(self, numbers: Sequence[int], work: _Work) -> dict[int, FailedRequest]:
        """Send requests once. Returns the transient failures by number."""
        began = time.monotonic()
        try:
            async with nullcontext() if self.service.own_timeout else asyncio.timeout(self.limits.timeout):
                answers = await self.service.call([work.requests[number] for number in numbers])
        except TimeoutError:
            answers = [timed_out(self.limits.timeout)] * len(numbers)
        work.tally.took(time.monotonic() - began)
        work.tally.add("calls")
        again: dict[int, FailedRequest] = {}
        for number, answer in zip(numbers, answers, strict=True):
            work.answers[number] = answer
            self._count(answer, work.tally)
            if isinstance(answer, FailedRequest) and answer.transient:
                again[number] = answer
        if len(again) < len(numbers):
            self._answered = time.monotonic()
        return again

    @staticmethod
    def _count(answer: Answer, tally: StepTally) -> None:
        if isinstance(answer, FailedRequest):
            tally.add("timeouts" if answer.failure == "timeout" else f"failures_{answer.failure}")
        elif isinstance(answer, NoMatch) and answer.failure is not None:
            tally.add(f"failures_{answer.failure}")
        else:
            tally.add("successes")

    async def _alive(self, since: float) -> bool:
        """Whether the service is available, so that the request itself is at fault."""
        if self._answered > since:
            return True
        async with self._probing:
            probed_at, alive = self._probed
            if time.monotonic() - probed_at < _PROBE_EVERY:
                return alive
            try:
                async with asyncio.timeout(PROBE_SECONDS):
                    await self.service.probe()
                alive = True
            except ProjectError as error:
                if error.code != "service-away":
                    raise
                alive = False
            except Exception:
                alive = False
            self._probed = time.monotonic(), alive
            return alive


@dataclass(frozen=True)
class _Work:
    requests: Sequence[Any]
    answers: list[Answer]
    tally: StepTally


def _timed_out(failed: dict[int, FailedRequest]) -> bool:
    return all(request.failure == "timeout" for request in failed.values())


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@cache
def event_loop() -> asyncio.AbstractEventLoop:
    """The event loop of this process: connections outlive batches and tasks."""
    return asyncio.new_event_loop()


def check_service(service: ServiceClient) -> None:
    """Probe a service, from a thread without an event loop."""

    async def probe() -> None:
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await service.probe()
        finally:
            await service.close()

    try:
        asyncio.run(probe())
    except TimeoutError:
        raise service_unavailable(service.label, f"no answer within {PROBE_SECONDS:g} s") from None
