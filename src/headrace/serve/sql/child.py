"""The process that answers questions: `python -m headrace.serve.sql.child`, started by an API process.

It has nothing to lose: it reads stores, holds no secret, and ends by itself when a question takes too long or too much.
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
from headrace.serve.access.access import Doors
from headrace.serve.access.grants import Grant
from headrace.serve.access.stores import Stores
from headrace.serve.base.settings import Settings
from headrace.serve.sql.answer import answer
from headrace.serve.sql.messages import ANSWER, READY, REFUSAL, Closed, asked_of, receive, refusal, send, settings_of
from headrace.serve.sql.tables import Tables

_LOG = logging.getLogger(__name__)
_START_SECONDS = 60.0
_GRACE_SECONDS = 1.0
"""How long a question may go on after it was interrupted, before this process ends with it."""
_MEMORY_FACTOR = 2
"""The database counts what it allocates for tables and their likes, not every byte that a function makes."""
_MEMORY_SLACK = 256_000_000
"""For the threads and pools that libraries make when they are first used."""


def main() -> None:
    """Answer one question after the other, until the API process is gone."""
    questions, answers = 0, _own_output()
    try:
        _, hello = receive(questions)
        settings = settings_of(hello)
        stores = Stores(settings)
        _warm_up(settings, stores)
        _bound_memory(settings.spec.limits.sql.memory)
        send(answers, READY, b"")
        while True:
            _, asked = receive(questions)
            send(answers, *_answered(asked, settings, stores))
    except Closed:
        pass


def _own_output() -> int:
    """Where answers go; what libraries print goes to the log."""
    own = os.dup(1)
    os.dup2(2, 1)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    # it warns of each statement that it reads only in part, which are those that are refused
    logging.getLogger("sqlglot").setLevel(logging.ERROR)
    return own


def _warm_up(settings: Settings, stores: Stores) -> None:
    """Load what the first question would otherwise have to load within its time and memory."""
    pa.set_cpu_count(1)
    if settings.lakes:
        import_module("deltalake")
    limits = settings.spec.limits
    tables = Tables(Doors(stores, limits, _no_cursors), Grant("warm-up", frozenset()), {})
    answer("SELECT 1", None, tables, SqlLimits(time=timedelta(seconds=_START_SECONDS)))


def _bound_memory(memory: int) -> None:
    """No more than this above what an idle process has. Not of the address space: stores are mapped into that."""
    most = psutil.Process().memory_info().data + _MEMORY_SLACK + _MEMORY_FACTOR * memory
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _answered(message: bytes, settings: Settings, stores: Stores) -> tuple[int, bytes]:
    asked = asked_of(message)
    limits = settings.spec.limits
    doors = Doors(stores, limits, _no_cursors)
    try:
        with _ended_after(limits.sql.time.total_seconds() + _GRACE_SECONDS):
            tables = Tables(doors, asked.grant, settings.lakes)
            return ANSWER, answer(asked.sql, asked.parameters, tables, limits.sql)
    except RequestError as error:
        return REFUSAL, refusal(error)
    except Exception:
        _LOG.exception("a question could not be answered")
        why = "the question could not be answered here"
        return REFUSAL, refusal(RequestError("sql-unanswered", why, status=503, hint="the log says why"))


def _no_cursors() -> bytes:
    raise AssertionError("questions are answered from whole scans")


@contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    """The kernel ends this process then: not all that a database does can be interrupted."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    main()
