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
from headrace.core.services import not_let_in, not_trusted, service_away
from headrace.core.tls import TlsTexts

Connection = psycopg.Connection[Any]

# how values are written, whatever the server and the role have as their defaults; a snapshot takes as long as it takes
_SETTINGS = (
    "-c DateStyle=ISO -c IntervalStyle=postgres -c TimeZone=UTC -c extra_float_digits=1 -c bytea_output=hex "
    "-c statement_timeout=0 -c idle_in_transaction_session_timeout=0 -c lock_timeout=30s"
)
# a connection that is refused has a text and no code
_NOT_ALLOWED = re.compile(r"authentication failed|no password supplied|no pg_hba.conf entry|role .* does not exist")
_MISSING = re.compile(r"database .* does not exist")
_UNTRUSTED = re.compile(r"certificate|server does not support SSL|SSL error")
_ROLE = re.compile(r"must be superuser or replication role|permission denied to start WAL sender")
# connection lost, too many connections, no room, shutting down, starting, deadlock, lock not available, cancelled
_PASSING = ("08", "53", "57P", "40", "55P03", "57014")
_IN_USE = "55006"
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
        given = conninfo_to_dict(self.url).get("options") or ""
        options: dict[str, Any] = {**self.options, "options": f"{given} {_SETTINGS}".strip()}
        if replication:
            options["replication"] = "database"
        try:
            with (self.tls or TlsTexts()).files() as paths:
                options |= self._secure(paths)
                return psycopg.connect(self.url, autocommit=True, **options)
        except psycopg.OperationalError as error:
            raise _at_the_door(self.label, error) from error

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
    if _ROLE.search(said):
        return no_replication(label)
    if _NOT_ALLOWED.search(said):
        return not_let_in(label, said)
    if _MISSING.search(said):
        return ProjectError("postgres-missing", f"{label}: {said}", hint="make the database, or mend its name")
    if _UNTRUSTED.search(said):
        return not_trusted(label, said)
    return service_away(label, said)


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


def one_line(error: Exception) -> str:
    """What was said, without line breaks."""
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip())[:400] or type(error).__name__
