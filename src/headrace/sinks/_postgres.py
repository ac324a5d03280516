"""Connections to a PostgreSQL server, and what its errors mean."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg

from headrace.core.errors import ProjectError
from headrace.core.services import not_let_in, not_trusted, service_away
from headrace.core.tls import TlsTexts
from headrace.sinks._patience import Patience

# a connection that is refused has a text and no code
_NOT_ALLOWED = re.compile(r"authentication failed|no password supplied|no pg_hba.conf entry|role .* does not exist")
_MISSING = re.compile(r"database .* does not exist")
_UNTRUSTED = re.compile(r"certificate|server does not support SSL|SSL error")
# connection lost, too many connections, no room, shutting down, starting, deadlock, serialisation, lock not available,
# statement that took too long
_PASSING = ("08", "53", "57P", "40", "55P03", "57014")
# the server should be the first to say that a statement takes too long
_GRACE_SECONDS = 5.0


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that is given up when the server does not answer.

    The system of a frozen server still confirms what is sent there, so no timeout of TCP ends, and nor does one of the
    server.
    """

    limit: float | None = None

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """All that waits for the server comes through here."""
        limit = self.limit if timeout is None else timeout
        began = time.monotonic()
        try:
            return super().wait(gen, interval, limit)
        except psycopg.OperationalError as error:
            if limit is None or time.monotonic() - began < limit:
                raise
            self.pgconn.finish()  # nobody knows what it would answer to
            raise psycopg.OperationalError(f"no answer within {limit:g} s") from error


@dataclass(frozen=True)
class PgServer:
    """Where and how to connect; pickled to the workers."""

    label: str
    url: str = field(repr=False)
    options: dict[str, Any] = field(repr=False)
    tls: TlsTexts | None = field(repr=False)
    retry_for: float
    statement_timeout: float

    def connect(self, *, autocommit: bool = False) -> BoundedConnection:
        """A connection, tried for as long as the server is away."""
        patience = Patience(self.retry_for)
        while True:
            try:
                with (self.tls or TlsTexts()).files() as paths:
                    options: dict[str, Any] = {**self.options, **self._secure(paths)}
                    made = BoundedConnection.connect(self.url, autocommit=autocommit, **options)
                made.limit = self.statement_timeout + _GRACE_SECONDS
                return made
            except psycopg.OperationalError as error:
                problem = _at_the_door(self.label, error)
                if problem.code != "service-away" or not patience.wait():
                    raise problem from error

    def _secure(self, paths: dict[str, str]) -> dict[str, str]:
        if self.tls is None:
            return {}
        made = {"sslmode": "verify-full" if self.tls.verify else "require"}
        if self.tls.verify:
            made["sslrootcert"] = paths.get("ca", "system")
        if "certificate" in paths:
            made |= {"sslcert": paths["certificate"], "sslkey": paths["key"]}
        return made


def _at_the_door(label: str, error: psycopg.OperationalError) -> ProjectError:
    said = one_line(error)
    if _NOT_ALLOWED.search(said):
        return not_let_in(label, said)
    if _MISSING.search(said):
        return ProjectError("sink-missing", f"{label}: {said}", hint="make the database, or mend its name")
    if _UNTRUSTED.search(said):
        return not_trusted(label, said)
    return service_away(label, said)


@contextmanager
def explained(label: str) -> Iterator[None]:
    """Turn what the server says into an error with a code."""
    try:
        yield
    except psycopg.Error as error:
        raise explanation(label, error) from error


def explanation(label: str, error: psycopg.Error) -> ProjectError:
    """Whose fault an error of the server is."""
    state, said = error.sqlstate, one_line(error)
    if state is None or state.startswith(_PASSING):
        return service_away(label, said)
    if state.startswith("28") or state == "42501":
        return not_let_in(label, said)
    if state in ("42P01", "3D000", "3F000", "42703"):
        return ProjectError("sink-missing", f"{label}: {said}", hint="put it back, or write `create: true`")
    if state.startswith(("22", "23")):
        hint = "mend the SQL of the flow, or the table's types and constraints"
        return ProjectError("sink-row-refused", f"{label} refused a row: {said}", hint=hint)
    return ProjectError("sink-refused", f"{label}: {said}", hint="look at the server's log")


def one_line(error: Exception) -> str:
    """What was said, without line breaks."""
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip())[:400] or type(error).__name__
