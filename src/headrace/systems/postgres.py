"""Connections to PostgreSQL servers, for all that reads from or writes to one."""

from __future__ import annotations

import re
import time
from typing import Any

import psycopg

from headrace.core.errors import ProjectError
from headrace.systems.services import not_let_in, not_trusted
from headrace.systems.tls import TlsTexts

# a connection that is refused has a text and no code
_NOT_ALLOWED = re.compile(r"authentication failed|no password supplied|no pg_hba.conf entry|role .* does not exist")
_NO_DATABASE = re.compile(r"database .* does not exist")
_UNTRUSTED = re.compile(r"certificate|server does not support SSL|SSL error")


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


def tls_options(tls: TlsTexts | None, paths: dict[str, str]) -> dict[str, str]:
    """What libpq has to be told to trust only whom we trust."""
    if tls is None:
        return {}
    made = {"sslmode": "verify-full" if tls.verify else "require"}
    if tls.verify:
        made["sslrootcert"] = paths.get("ca", "system")
    if "certificate" in paths:
        made |= {"sslcert": paths["certificate"], "sslkey": paths["key"]}
    return made


def refused_at_the_door(label: str, error: psycopg.OperationalError) -> ProjectError | None:
    """Why a server does not let us in, if it is not just away."""
    said = one_line(error)
    if _NOT_ALLOWED.search(said):
        return not_let_in(label, said)
    return not_trusted(label, said) if _UNTRUSTED.search(said) else None


def lacks_database(error: psycopg.OperationalError) -> bool:
    """Whether there is a server, but not the database."""
    return _NO_DATABASE.search(one_line(error)) is not None


def one_line(error: Exception) -> str:
    """What was said, without line breaks."""
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip())[:400] or type(error).__name__
