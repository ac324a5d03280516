"""Connections to a PostgreSQL server, and what its errors mean."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg

from headrace.core.errors import ProjectError
from headrace.sinks._patience import Patience
from headrace.systems.postgres import BoundedConnection, lacks_database, one_line, refused_at_the_door, tls_options
from headrace.systems.services import not_let_in, service_away
from headrace.systems.tls import TlsTexts

# connection lost, too many connections, no room, shutting down, starting, deadlock, serialisation, lock not available,
# statement that took too long
_PASSING = ("08", "53", "57P", "40", "55P03", "57014")
# the server should be the first to say that a statement takes too long
_GRACE_SECONDS = 5.0


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
                    options: dict[str, Any] = {**self.options, **tls_options(self.tls, paths)}
                    made = BoundedConnection.connect(self.url, autocommit=autocommit, **options)
                made.limit = self.statement_timeout + _GRACE_SECONDS
                return made
            except psycopg.OperationalError as error:
                problem = _at_the_door(self.label, error)
                if problem.code != "service-away" or not patience.wait():
                    raise problem from error


def _at_the_door(label: str, error: psycopg.OperationalError) -> ProjectError:
    said = one_line(error)
    if lacks_database(error):
        return ProjectError("sink-missing", f"{label}: {said}", hint="make the database, or mend its name")
    return refused_at_the_door(label, error) or service_away(label, said)


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
