"""The process that executes SQL queries: `python -m headrace.serve.sql.child`, started by an API process.

It is disposable: it only reads stores, holds no secret, and ends itself when a query exceeds its time or memory.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module

import psutil
import pyarrow as pa

from headrace.core.errors import RequestError
from headrace.project.serving import SqlLimits
from headrace.serve.access.access import AccessControl
from headrace.serve.access.grants import Grant
from headrace.serve.access.stores import Stores
from headrace.serve.base.settings import Settings
from headrace.serve.sql.answer import execute
from headrace.serve.sql.messages import (
    ANSWER,
    READY,
    REFUSAL,
    Closed,
    decode_request,
    receive,
    refusal,
    send,
    settings_of,
)
from headrace.serve.sql.tables import Tables

_LOG = logging.getLogger(__name__)
_START_SECONDS = 60.0
_GRACE_SECONDS = 1.0
"""How long an interrupted query may continue before the process ends."""
_MEMORY_FACTOR = 2
"""The database counts the memory of tables and operators, not every byte that a function allocates."""
_MEMORY_SLACK = 256_000_000
"""For the threads and pools that libraries create at first use."""


def main() -> None:
    """Execute one query after the other, until the API process ends."""
    queries, results = 0, _own_output()
    try:
        _, hello = receive(queries)
        settings = settings_of(hello)
        stores = Stores(settings)
        _warm_up(settings, stores)
        _bound_memory(settings.spec.limits.sql.memory)
        send(results, READY, b"")
        while True:
            _, message = receive(queries)
            send(results, *_executed(message, settings, stores))
    except Closed:
        pass


def _own_output() -> int:
    """The file for results; what libraries print goes to the log."""
    own = os.dup(1)
    os.dup2(2, 1)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    # sqlglot warns about each statement that it parses only in part; those statements are refused
    logging.getLogger("sqlglot").setLevel(logging.ERROR)
    return own


def _warm_up(settings: Settings, stores: Stores) -> None:
    """Load what the first query would otherwise load within its time and memory."""
    pa.set_cpu_count(1)
    if settings.lakes:
        import_module("deltalake")
    limits = settings.spec.limits
    tables = Tables(AccessControl(stores, limits, _no_cursors), Grant("warm-up", frozenset()), {})
    execute("SELECT 1", None, tables, SqlLimits(time=timedelta(seconds=_START_SECONDS)))


def _bound_memory(memory: int) -> None:
    """Limit the memory above that of the idle process. Not the address space: stores are mapped into it."""
    most = psutil.Process().memory_info().data + _MEMORY_SLACK + _MEMORY_FACTOR * memory
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _executed(message: bytes, settings: Settings, stores: Stores) -> tuple[int, bytes]:
    request = decode_request(message)
    limits = settings.spec.limits
    access = AccessControl(stores, limits, _no_cursors)
    try:
        with _ended_after(limits.sql.time.total_seconds() + _GRACE_SECONDS):
            tables = Tables(access, request.grant, settings.lakes)
            return ANSWER, execute(request.sql, request.parameters, tables, limits.sql)
    except RequestError as error:
        return REFUSAL, refusal(error)
    except Exception:
        _LOG.exception("a query could not be executed")
        message_text = "the query could not be executed"
        return REFUSAL, refusal(RequestError("sql-unanswered", message_text, status=503, hint="the log has the cause"))


def _no_cursors() -> bytes:
    raise AssertionError("SQL queries scan whole endpoints")


@contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    """Let the kernel end this process after a time: the database cannot always be interrupted."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    main()
