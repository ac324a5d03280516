"""Connections to a PostgreSQL server that tables are read from, and what its errors mean."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from headrace.core.errors import Exit, ProjectError
from headrace.systems.postgres import BoundedConnection, lacks_database, one_line, refused_at_the_door, tls_options
from headrace.systems.services import not_let_in, service_away
from headrace.systems.tls import TlsTexts

Connection = psycopg.Connection[Any]

# how values are written, whatever the server and the role have as their defaults; a snapshot takes as long as it takes
_SETTINGS = (
    "-c DateStyle=ISO -c IntervalStyle=postgres -c TimeZone=UTC -c extra_float_digits=1 -c bytea_output=hex "
    "-c statement_timeout=0 -c idle_in_transaction_session_timeout=0 -c lock_timeout=30s"
)
_ROLE = re.compile(r"must be superuser or replication role|permission denied to start WAL sender")
# connection lost, too many connections, no room, shutting down, starting, deadlock, lock not available, cancelled
_PASSING = ("08", "53", "57P", "40", "55P03", "57014")
_IN_USE = "55006"
_LIMIT_SECONDS = 60.0
_OLDEST = 12_00_00
_CHANGED_MEANWHILE = ("42P01", "42703")


@dataclass(frozen=True)
class PgServer:
    """Where and how to connect."""

    label: str
    url: str = field(repr=False)
    options: dict[str, Any] = field(repr=False)
    tls: TlsTexts | None = field(repr=False)

    def connect(self, *, replication: bool = False) -> Connection:
        """A connection on which every statement is a transaction of its own."""
        options: dict[str, Any] = {**self.options, "options": f"{self._given} {_SETTINGS}".strip()}
        if replication:
            options["replication"] = "database"
        try:
            with (self.tls or TlsTexts()).files() as paths:
                options |= tls_options(self.tls, paths)
                made = BoundedConnection.connect(self.url, autocommit=True, **options)
        except psycopg.OperationalError as error:
            raise _at_the_door(self.label, error) from error
        made.limit = _LIMIT_SECONDS
        if made.info.server_version < _OLDEST:
            made.close()
            raise ProjectError("postgres-version", f"{self.label} is older than PostgreSQL 12", hint="upgrade it")
        return made

    @property
    def _given(self) -> str:
        """Options of the server in the address. What is wrong with that is not said: it may be the password."""
        try:
            return str(conninfo_to_dict(self.url).get("options") or "")
        except psycopg.ProgrammingError:
            hint = "write special letters of names and passwords as %XX, or give them as `username` and `password`"
            raise ProjectError("postgres-url", f"the address of {self.label} cannot be read", hint=hint) from None


def _at_the_door(label: str, error: psycopg.OperationalError) -> ProjectError:
    said = one_line(error)
    if _ROLE.search(said):
        return no_replication(label)
    if lacks_database(error):
        return ProjectError("postgres-missing", f"{label}: {said}", hint="make the database, or mend its name")
    return refused_at_the_door(label, error) or service_away(label, said)


def no_replication(label: str, role: str = "…") -> ProjectError:
    """For a role that may not follow changes."""
    return ProjectError(
        "replication-role",
        f"{label}: this role may not follow changes: it lacks REPLICATION",
        hint=f"run as superuser: ALTER ROLE {role} REPLICATION",
    )


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
    if state is None or state.startswith(_PASSING) or state in _CHANGED_MEANWHILE:
        return service_away(label, said)
    if state == _IN_USE:
        return ProjectError(
            "slot-in-use",
            f"{label}: {said}",
            hint="one reader at a time: wait until the other has ended, or give these tables a `slot` of their own",
            exit_code=Exit.TRANSIENT,
        )
    if state.startswith("28") or state == "42501":
        return not_let_in(label, said)
    return ProjectError("table-refused", f"{label}: {said}", hint="look at the server's log")
