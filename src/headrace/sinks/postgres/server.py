"""A PostgreSQL server that rows are written to."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

import psycopg

from headrace.core.errors import ProjectError
from headrace.systems.postgres.server import BoundedConnection, PgServer, errors_explained, one_line, service_error


@dataclass(frozen=True)
class SinkServer(PgServer):
    """A server that rows are written to."""

    statement_timeout: float = 300.0

    def missing_database(self, reason: str) -> ProjectError:
        return ProjectError("sink-missing", f"{self.label}: {reason}", hint="create the database, or fix its name")

    def connect(self, *, autocommit: bool = False) -> BoundedConnection:
        """A connection, after retries while the server is unavailable."""
        return self.open(autocommit=autocommit)


def explained(label: str) -> AbstractContextManager[None]:
    """Raise errors of the server as errors with a code."""
    return errors_explained(label, explanation)


def explanation(label: str, error: psycopg.Error) -> ProjectError:
    """An error of the server as one with a code."""
    problem = service_error(label, error)
    if problem is not None:
        return problem
    state, reason = str(error.sqlstate), one_line(error)
    if state in ("42P01", "3D000", "3F000", "42703"):
        return ProjectError("sink-missing", f"{label}: {reason}", hint="restore it, or write `create: true`")
    if state.startswith(("22", "23")):
        hint = "fix the SQL of the flow, or the types and constraints of the table"
        return ProjectError("sink-row-refused", f"{label} refused a row: {reason}", hint=hint)
    return ProjectError("sink-refused", f"{label}: {reason}", hint="see the server's log")
