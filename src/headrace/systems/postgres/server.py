"""Connections to a PostgreSQL server, and the errors of the server that are the same for all kinds."""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg

from headrace.core.errors import ProjectError
from headrace.systems.services import SERVICE_BACKOFF, access_denied, service_unavailable, untrusted_connection
from headrace.systems.tls import TlsTexts

# a connection that is refused has a text and no code
_DENIED = re.compile(r"authentication failed|no password supplied|no pg_hba.conf entry|role .* does not exist")
_NO_DATABASE = re.compile(r"database .* does not exist")
_UNTRUSTED = re.compile(r"certificate|server does not support SSL|SSL error")
# connection lost, too many connections, out of resources, shutting down or starting, deadlock, serialisation failure,
# lock not available
_TRANSIENT = ("08", "53", "57P", "40", "55P03")
CANCELLED = "57014"
"""The state of a statement that took longer than `statement_timeout`."""
# the client waits this much longer than `statement_timeout`, so that the server cancels first
_GRACE_SECONDS = 5.0
_SILENCE_SECONDS = 60.0


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that gives up when the server does not answer.

    The operating system of a frozen server still acknowledges what is sent, so neither a timeout of TCP nor one of the
    server ends the wait.
    """

    limit: float | None = None

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """All waiting for the server goes through this method."""
        limit = self.limit if timeout is None else timeout
        started = time.monotonic()
        try:
            return super().wait(gen, interval, limit)
        except psycopg.OperationalError as error:
            if limit is None or time.monotonic() - started < limit:
                raise
            self.pgconn.finish()  # a late answer would be read as the answer to the next statement
            raise psycopg.OperationalError(f"no answer within {limit:g} s") from error


@dataclass(frozen=True)
class PgServer(ABC):
    """Connects to one database; pickled to the workers."""

    label: str
    url: str = field(repr=False)
    options: dict[str, Any] = field(repr=False)
    tls: TlsTexts | None = field(repr=False)
    retry_for: float = 0.0
    """Seconds for which connecting is retried while the server is unavailable."""
    statement_timeout: float | None = None
    """Seconds that one statement may take; None: as long as the server sends something every minute."""

    @abstractmethod
    def missing_database(self, reason: str) -> ProjectError:
        """The error for a server that lacks the database."""

    def open(self, *, autocommit: bool = False, **options: Any) -> BoundedConnection:
        """A connection. Raises a ProjectError when the server refuses it or stays unavailable."""
        retries = SERVICE_BACKOFF.within(self.retry_for)
        while True:
            try:
                with (self.tls or TlsTexts()).files() as paths:
                    options = {**self.options, **options, **tls_options(self.tls, paths)}
                    connection = BoundedConnection.connect(self.url, autocommit=autocommit, **options)
                timeout = self.statement_timeout
                connection.limit = _SILENCE_SECONDS if timeout is None else timeout + _GRACE_SECONDS
                return connection
            except psycopg.OperationalError as error:
                problem = self._refusal(error)
                if problem.code != "service-away" or not retries.wait():
                    raise problem from error

    def _refusal(self, error: psycopg.OperationalError) -> ProjectError:
        if lacks_database(error):
            return self.missing_database(one_line(error))
        return connection_refused(self.label, error) or service_unavailable(self.label, one_line(error))


def tls_options(tls: TlsTexts | None, paths: dict[str, str]) -> dict[str, str]:
    """Parameters of libpq for TLS that trusts only the configured authorities."""
    if tls is None:
        return {}
    options = {"sslmode": "verify-full" if tls.verify else "require"}
    if tls.verify:
        options["sslrootcert"] = paths.get("ca", "system")
    if "certificate" in paths:
        options |= {"sslcert": paths["certificate"], "sslkey": paths["key"]}
    return options


def connection_refused(label: str, error: psycopg.OperationalError) -> ProjectError | None:
    """The error for a server that refuses the login or cannot be trusted; None when it is just unavailable."""
    reason = one_line(error)
    if _DENIED.search(reason):
        return access_denied(label, reason)
    return untrusted_connection(label, reason) if _UNTRUSTED.search(reason) else None


def lacks_database(error: psycopg.OperationalError) -> bool:
    """Whether the server answers but does not have the database."""
    return _NO_DATABASE.search(one_line(error)) is not None


def is_transient(error: psycopg.Error) -> bool:
    """Whether a later attempt may succeed."""
    return error.sqlstate is None or error.sqlstate.startswith(_TRANSIENT)


def is_denied(error: psycopg.Error) -> bool:
    """Whether the role may not do what it tried."""
    return error.sqlstate is not None and (error.sqlstate.startswith("28") or error.sqlstate == "42501")


def service_error(label: str, error: psycopg.Error) -> ProjectError | None:
    """The error for a server that is unavailable or denies access; None for all others."""
    if is_transient(error) or error.sqlstate == CANCELLED:
        return service_unavailable(label, one_line(error))
    return access_denied(label, one_line(error)) if is_denied(error) else None


@contextmanager
def errors_explained(label: str, explain: Callable[[str, psycopg.Error], ProjectError]) -> Iterator[None]:
    """Raise errors of the server as errors with a code."""
    try:
        yield
    except psycopg.Error as error:
        raise explain(label, error) from error


def one_line(error: Exception) -> str:
    """The text of an error without line breaks."""
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip())[:400] or type(error).__name__
