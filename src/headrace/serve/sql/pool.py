"""The query processes of one API process: started on demand, replaced when they fail."""

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
from headrace.serve.replica.corruption_flag import CRASHES, set_flag
from headrace.serve.sql.messages import ANSWER, QUERY, READY, Closed, Late, hello, receive, refused, send

_START_SECONDS = 60.0
_GRACE_SECONDS = 3.0
_PATIENCE_SECONDS = 1.0
_OVER = ("sql-memory", "sql-timeout", "sql-unanswered")
"""After one of these errors the process is replaced, so that memory that it still holds is freed."""


class QueryProcesses:
    """As many processes as queries may run at once."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._limits = settings.spec.limits.sql
        self._idle: list[_QueryProcess] = []
        self._lock = threading.Lock()
        self._closed = False
        self._free = asyncio.Semaphore(self._limits.at_once)
        self._threads = ThreadPoolExecutor(self._limits.at_once, thread_name_prefix="sql")

    async def run(self, message: bytes) -> bytes:
        """The result as JSON. RequestError: the query failed, or too many run at once."""
        try:
            await asyncio.wait_for(self._free.acquire(), _PATIENCE_SECONDS)
        except TimeoutError:
            raise RequestError(
                "sql-busy",
                f"{self._limits.at_once} queries are already running",
                status=429,
                hint="retry in a moment, or raise serve.limits.sql.at_once",
                retry_after=1.0,
            ) from None
        # released only when the process is free again, even if the caller disconnects earlier
        running = asyncio.get_running_loop().run_in_executor(self._threads, self._run, message)
        running.add_done_callback(lambda _: self._free.release())
        return await asyncio.shield(running)

    def close(self) -> None:
        """End all processes and their queries."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for process in idle:
            process.end()
        self._threads.shutdown(wait=False)

    def _run(self, message: bytes) -> bytes:
        with self._lock:
            process = self._idle.pop() if self._idle else None
        if process is None or not process.alive():
            process = _QueryProcess(self._settings)
        try:
            result = process.run(message)
        except RequestError as error:
            self._release(process, reusable=error.code not in _OVER)
            raise
        except BaseException:
            process.end()
            raise
        self._release(process, reusable=True)
        return result

    def _release(self, process: _QueryProcess, *, reusable: bool) -> None:
        with self._lock:
            if reusable and not self._closed:
                self._idle.append(process)
                return
        process.end()


class _QueryProcess:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._seconds = settings.spec.limits.sql.time.total_seconds()
        command = [sys.executable, "-m", "headrace.serve.sql.child"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests = self._process.stdin.fileno()
        self._results = self._process.stdout.fileno()
        try:
            send(self._requests, READY, hello(settings))
            receive(self._results, time.monotonic() + _START_SECONDS)
        except (Closed, Late):
            self.end()
            raise RequestError(
                "sql-unanswered", "no query process could be started", status=503, hint="the log has the cause"
            ) from None

    def alive(self) -> bool:
        return self._process.poll() is None

    def run(self, message: bytes) -> bytes:
        """The result of one query; RequestError when it fails."""
        try:
            send(self._requests, QUERY, message)
            kind, body = receive(self._results, time.monotonic() + self._seconds + _GRACE_SECONDS)
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
            # a damaged store can cause this as well as a lack of memory: have the stores checked
            set_flag(self._settings.store, f"a query process was ended by {signal.Signals(code).name}")
        return RequestError(
            "sql-memory",
            "the query process ended, most likely because of a lack of memory",
            status=413,
            hint="restrict the query, or raise serve.limits.sql.memory",
        )

    def _timed_out(self) -> RequestError:
        return RequestError(
            "sql-timeout",
            f"the query took longer than {self._seconds:g} s",
            status=408,
            hint="restrict the query, or raise serve.limits.sql.time",
        )

    def end(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
