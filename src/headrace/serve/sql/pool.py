"""The processes that answer the questions of one API process: started when first asked, replaced when they fail."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from headrace.core.errors import RequestError
from headrace.serve.base.settings import Settings
from headrace.serve.replica.corruption_flag import CRASHES, suspect
from headrace.serve.sql.messages import ANSWER, QUESTION, READY, Closed, Late, hello, receive, refused, send

_START_SECONDS = 60.0
_GRACE_SECONDS = 3.0
_PATIENCE_SECONDS = 1.0
_OVER = ("sql-memory", "sql-timeout", "sql-unanswered")
"""A process that answered with one of these is not asked again: what it still holds on to is lost with it."""


class Answerers:
    """As many processes as questions may be asked at once."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._limits = settings.spec.limits.sql
        self._idle: list[_Answerer] = []
        self._lock = threading.Lock()
        self._closed = False
        self._free = asyncio.Semaphore(self._limits.at_once)
        self._threads = ThreadPoolExecutor(self._limits.at_once, thread_name_prefix="sql")

    async def ask(self, message: bytes) -> bytes:
        """The answer as JSON. A RequestError: there is none, or too many ask at once."""
        try:
            await asyncio.wait_for(self._free.acquire(), _PATIENCE_SECONDS)
        except TimeoutError:
            raise RequestError(
                "sql-busy",
                f"{self._limits.at_once} questions are being answered already",
                status=429,
                hint="ask again in a moment, or raise serve.limits.sql.at_once",
                retry_after=1.0,
            ) from None
        # not given back before the process is free again, even if the caller does not wait that long
        under_way = asyncio.get_running_loop().run_in_executor(self._threads, self._ask, message)
        under_way.add_done_callback(lambda _: self._free.release())
        return await asyncio.shield(under_way)

    def close(self) -> None:
        """End all processes; questions under way end with them."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for one in idle:
            one.end()
        self._threads.shutdown(wait=False)

    def _ask(self, message: bytes) -> bytes:
        with self._lock:
            one = self._idle.pop() if self._idle else None
        if one is None or not one.alive():
            one = _Answerer(self._settings)
        try:
            found = one.ask(message)
        except RequestError as error:
            self._back(one, fit=error.code not in _OVER)
            raise
        except BaseException:
            one.end()
            raise
        self._back(one, fit=True)
        return found

    def _back(self, one: _Answerer, *, fit: bool) -> None:
        with self._lock:
            if fit and not self._closed:
                self._idle.append(one)
                return
        one.end()


class _Answerer:
    """One process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._seconds = settings.spec.limits.sql.time.total_seconds()
        command = [sys.executable, "-m", "headrace.serve.sql.child"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._questions = self._process.stdin.fileno()
        self._answers = self._process.stdout.fileno()
        try:
            send(self._questions, READY, hello(settings))
            receive(self._answers, time.monotonic() + _START_SECONDS)
        except (Closed, Late):
            self.end()
            raise RequestError(
                "sql-unanswered", "no process could be started for the question", status=503, hint="the log says why"
            ) from None

    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._process.poll() is None

    def ask(self, message: bytes) -> bytes:
        """The answer to one question; a RequestError otherwise."""
        try:
            send(self._questions, QUESTION, message)
            kind, body = receive(self._answers, time.monotonic() + self._seconds + _GRACE_SECONDS)
        except Late:
            raise self._timed_out() from None
        except Closed:
            raise self._died() from None
        if kind == ANSWER:
            return body
        raise refused(body)

    def _died(self) -> RequestError:
        code = -self._process.wait()
        if code == signal.SIGALRM:
            return self._timed_out()
        if code in CRASHES:
            # a damaged store can do that as well as a database without memory: have the stores looked at
            suspect(self._settings.store, f"a question was ended by {signal.Signals(code).name}")
        return RequestError(
            "sql-memory",
            "the question has ended the process that was to answer it, most likely for want of memory",
            status=413,
            hint="narrow it, or raise serve.limits.sql.memory",
        )

    def _timed_out(self) -> RequestError:
        return RequestError(
            "sql-timeout",
            f"the question was not answered within {self._seconds:g} s",
            status=408,
            hint="narrow it, or raise serve.limits.sql.time",
        )

    def end(self) -> None:
        """End the process, whatever it is doing."""
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
