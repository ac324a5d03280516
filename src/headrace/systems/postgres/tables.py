"""A PostgreSQL server that tables are read from."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from headrace.core.errors import Exit, ProjectError
from headrace.systems.postgres.server import PgServer, errors_explained, one_line, service_error
from headrace.systems.services import service_unavailable

Connection = psycopg.Connection[Any]

# how values are written, whatever the defaults of server and role are; a snapshot may take any time
_SETTINGS = (
    "-c DateStyle=ISO -c IntervalStyle=postgres -c TimeZone=UTC -c extra_float_digits=1 -c bytea_output=hex "
    "-c statement_timeout=0 -c idle_in_transaction_session_timeout=0 -c lock_timeout=30s"
)
_ROLE = re.compile(r"must be superuser or replication role|permission denied to start WAL sender")
_IN_USE = "55006"
_OLDEST = 12_00_00
# a table or column that was dropped while it was read
_DROPPED = ("42P01", "42703")


class TableServer(PgServer):
    """A server that tables are read from, once or with their changes."""

    def missing_database(self, reason: str) -> ProjectError:
        return ProjectError("postgres-missing", f"{self.label}: {reason}", hint="create the database, or fix its name")

    def connect(self, *, replication: bool = False) -> Connection:
        """A connection on which every statement is its own transaction."""
        options = {"options": f"{self._url_options} {_SETTINGS}".strip()}
        if replication:
            options["replication"] = "database"
        connection = self.open(autocommit=True, **options)
        if connection.info.server_version < _OLDEST:
            connection.close()
            raise ProjectError("postgres-version", f"{self.label} is older than PostgreSQL 12", hint="upgrade it")
        return connection

    def _refusal(self, error: psycopg.OperationalError) -> ProjectError:
        return no_replication(self.label) if _ROLE.search(one_line(error)) else super()._refusal(error)

    @property
    def _url_options(self) -> str:
        """Server options in the URL. The reason why a URL is invalid is hidden: it may contain the password."""
        try:
            return str(conninfo_to_dict(self.url).get("options") or "")
        except psycopg.ProgrammingError:
            hint = "write special letters of names and passwords as %XX, or give them as `username` and `password`"
            raise ProjectError("postgres-url", f"the address of {self.label} cannot be read", hint=hint) from None


def no_replication(label: str, role: str = "…") -> ProjectError:
    """The error for a role that may not use logical replication."""
    return ProjectError(
        "replication-role",
        f"{label}: this role may not follow changes: it lacks REPLICATION",
        hint=f"run as superuser: ALTER ROLE {role} REPLICATION",
    )


def explained(label: str) -> AbstractContextManager[None]:
    """Raise errors of the server as errors with a code."""
    return errors_explained(label, _explanation)


def _explanation(label: str, error: psycopg.Error) -> ProjectError:
    state, reason = error.sqlstate, one_line(error)
    if state in _DROPPED:
        return service_unavailable(label, reason)
    if state == _IN_USE:
        return ProjectError(
            "slot-in-use",
            f"{label}: {reason}",
            hint="a slot has one reader at a time: wait until the other has ended, or give these tables another `slot`",
            exit_code=Exit.TRANSIENT,
        )
    return service_error(label, error) or ProjectError(
        "table-refused", f"{label}: {reason}", hint="see the server's log"
    )
