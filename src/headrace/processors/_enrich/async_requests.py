"""Asking a service many things at once, and again while it is away. Lives in a Python worker."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Literal

from headrace.core.backoff import Backoff
from headrace.core.errors import ProjectError
from headrace.core.tallies.step_tally import StepTally
from headrace.systems.services import service_unavailable

FailureClass = Literal["4xx", "404", "5xx", "timeout", "other"]

PROBE_SECONDS = 2.0
_LONGEST_BACKOFF = 5.0
_LONGEST_ASKED_WAIT = 30.0
_PROBE_EVERY = 1.0


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """A question that got no answer: `reason` is a stable code, `detail` is for people and has no secret in it."""

    reason: str
    detail: str
    failure: FailureClass = "other"
    passes: bool = False
    """Whether asking again may help."""
    away: bool = False
    """Whether the service itself was perhaps not reached."""
    wait: float | None = None
    """How long the service asks us to wait."""


def timed_out(seconds: float) -> FailedRequest:
    """No answer in time."""
    return FailedRequest("timeout", f"no answer within {seconds:g} s", "timeout", passes=True, away=True)


def unreachable(why: str) -> FailedRequest:
    """No connection, or one that broke."""
    return FailedRequest("connection", why, passes=True, away=True)


@dataclass(frozen=True, slots=True)
class Nothing:
    """The answer that there is nothing: its columns become null."""

    failure: FailureClass | None = "404"


Answer = Any
"""A document, Nothing or a Refusal."""


class ServiceClient(ABC):
    """One service as a step asks it. Pickled to the workers; it connects when it is first asked."""

    label: str
    together: int = 1
    """How many questions it takes at once."""
    keeps_time: ClassVar[bool] = False
    """Whether it sees to the timeout itself, cheaper than the event loop does."""

    @abstractmethod
    def question(self, values: Sequence[Any]) -> Any:
        """What is asked for one key; an UnfitValueError says which value cannot be asked about."""

    @abstractmethod
    async def ask(self, questions: Sequence[Any]) -> list[Answer]:
        """An answer to each. A ProjectError: no question can be answered until somebody has mended something."""

    @abstractmethod
    async def probe(self) -> None:
        """A cheap sign of life that needs no key; any exception says that there is none."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of all connections."""


@dataclass(frozen=True)
class RequestLimits:
    """How a service is asked."""

    capacity: int
    timeout: float
    retries: int
    backoff: float
    give_up: float


@dataclass
class Asker:
    """Asks one service. What it knows about the service's health outlives the tasks."""

    service: ServiceClient
    limits: RequestLimits
    _answered: float = 0.0
    """When it last answered something, on the monotonic clock."""
    _probed: tuple[float, bool] = (-_PROBE_EVERY, False)
    _probing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def ask_all(self, questions: Sequence[Any], tally: StepTally) -> list[Answer]:
        """An answer to each, or a refusal. Raises when the service stays away."""
        if not questions:
            return []
        return event_loop().run_until_complete(self._ask_all(questions, tally))

    async def _ask_all(self, questions: Sequence[Any], tally: StepTally) -> list[Answer]:
        answers: list[Answer] = [None] * len(questions)
        size = self.service.together
        portions = iter([range(start, min(start + size, len(questions))) for start in range(0, len(questions), size)])
        work = _Work(questions, answers, tally)
        number = min(self.limits.capacity, -(-len(questions) // size))
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(number):
                    group.create_task(self._worker(portions, work))
        except BaseExceptionGroup as failed:
            # the first has cancelled the others
            raise _first(failed) from None
        return answers

    async def _worker(self, portions: Iterator[range], work: _Work) -> None:
        for portion in portions:
            await self._settle(portion, work, time.monotonic())

    async def _settle(self, numbers: Sequence[int], work: _Work, began: float) -> None:
        """Get answers for some questions, however often it takes.

        What is refused while the service is known to be there is refused for good. So a question that did not reach
        it gets another round of attempts once it is back.
        """
        attempt, known_alive, round_began = 0, False, time.monotonic()
        while True:
            refused = await self._attempt(numbers, work)
            if not refused:
                return
            if len(numbers) > 1 and len(refused) == len(numbers) and _timed_out(refused):
                # one of them may take all the time: each for itself
                for number in numbers:
                    await self._settle([number], work, began)
                return
            attempt += 1
            numbers = list(refused)
            last = refused[numbers[-1]]
            if attempt > self.limits.retries:
                alive = await self._alive(round_began)
                if alive and (known_alive or not any(one.away for one in refused.values())):
                    return
                if not alive and time.monotonic() - began > self.limits.give_up:
                    raise service_unavailable(self.service.label, last.detail)
                if alive:
                    attempt, round_began = 0, time.monotonic()
                known_alive = alive
            work.tally.add("retries", len(numbers))
            await asyncio.sleep(self._pause(attempt, last.wait))

    def _pause(self, attempt: int, asked: float | None) -> float:
        if asked is not None:
            return min(asked, _LONGEST_ASKED_WAIT)
        first = self.limits.backoff
        return Backoff(first, max(_LONGEST_BACKOFF, first)).pause(attempt - 1)

    async def _attempt(self, numbers: Sequence[int], work: _Work) -> dict[int, FailedRequest]:
        """Ask once; what may pass is given back, with its question's number."""
        began = time.monotonic()
        try:
            async with nullcontext() if self.service.keeps_time else asyncio.timeout(self.limits.timeout):
                found = await self.service.ask([work.questions[number] for number in numbers])
        except TimeoutError:
            found = [timed_out(self.limits.timeout)] * len(numbers)
        work.tally.took(time.monotonic() - began)
        work.tally.add("calls")
        again: dict[int, FailedRequest] = {}
        for number, answer in zip(numbers, found, strict=True):
            work.answers[number] = answer
            self._count(answer, work.tally)
            if isinstance(answer, FailedRequest) and answer.passes:
                again[number] = answer
        if len(again) < len(numbers):
            self._answered = time.monotonic()
        return again

    @staticmethod
    def _count(answer: Answer, tally: StepTally) -> None:
        if isinstance(answer, FailedRequest):
            tally.add("timeouts" if answer.failure == "timeout" else f"failures_{answer.failure}")
        elif isinstance(answer, Nothing) and answer.failure is not None:
            tally.add(f"failures_{answer.failure}")
        else:
            tally.add("successes")

    async def _alive(self, since: float) -> bool:
        """Whether the service is there: then it is the question that it does not answer."""
        if self._answered > since:
            return True
        async with self._probing:
            asked, alive = self._probed
            if time.monotonic() - asked < _PROBE_EVERY:
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
    questions: Sequence[Any]
    answers: list[Answer]
    tally: StepTally


def _timed_out(refused: dict[int, FailedRequest]) -> bool:
    return all(one.failure == "timeout" for one in refused.values())


def _first(failed: BaseExceptionGroup[BaseException]) -> BaseException:
    found: BaseException = failed
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


@cache
def event_loop() -> asyncio.AbstractEventLoop:
    """The one of this process: connections outlive batches and tasks."""
    return asyncio.new_event_loop()


def check_service(service: ServiceClient) -> None:
    """Ask for a sign of life, from a thread that has no event loop."""

    async def ask() -> None:
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await service.probe()
        finally:
            await service.close()

    try:
        asyncio.run(ask())
    except TimeoutError:
        raise service_unavailable(service.label, f"no answer within {PROBE_SECONDS:g} s") from None
