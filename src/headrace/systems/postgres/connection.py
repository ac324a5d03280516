"""Options of a connection to a PostgreSQL database. Does not load psycopg."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr

from headrace.core.component import Options
from headrace.core.context import Context
from headrace.systems.tls import ServiceTls, TlsTexts

_SHORTEST_CONNECT_SECONDS = 2  # of libpq


def _check_url(value: SecretStr) -> SecretStr:
    parts = urlsplit(value.get_secret_value())
    if parts.scheme not in ("postgresql", "postgres") or not parts.hostname:
        raise ValueError("not the address of a database; write postgresql://host:port/database")
    return value


PostgresUrl = Annotated[SecretStr, AfterValidator(_check_url)]
"""Secret as a whole, because it may contain a password."""


class PostgresConnection(Options):
    """How a kind connects to a database."""

    url: PostgresUrl = Field(
        description="Address of the database, with further parameters of libpq if need be.",
        examples=["postgresql://127.0.0.1:5432/shop", "${secret:POSTGRES_URL}"],
    )
    username: str | None = Field(None, description="The name to log in with, unless it is in `url`.")
    password: SecretStr | None = Field(
        None,
        description="The password to log in with, unless it is in `url`.",
        examples=["${secret:POSTGRES_PASSWORD}"],
    )
    tls: ServiceTls | None = Field(
        None,
        description="Insist on TLS and check whom we talk to; left out: TLS if the server has it.",
        examples=[{"ca": "tls/ca.pem"}],
    )

    @property
    def address(self) -> str:
        """Server and database, without user and password."""
        parts = urlsplit(self.url.get_secret_value())
        return f"{parts.netloc.rpartition('@')[2]}{parts.path}"

    def server_parameters(self, context: Context, connect_timeout: timedelta) -> dict[str, Any]:
        """Arguments of a `PgServer`."""
        return server_parameters(self.url, self.username, self.password, self.tls, context, connect_timeout)


def server_parameters(
    url: SecretStr,
    username: str | None,
    password: SecretStr | None,
    tls: ServiceTls | None,
    context: Context,
    connect_timeout: timedelta,
) -> dict[str, Any]:
    """The arguments `url`, `options` and `tls` of a `PgServer`."""
    options: dict[str, Any] = {
        "connect_timeout": max(_SHORTEST_CONNECT_SECONDS, round(connect_timeout.total_seconds())),
        "application_name": "headrace",
        "client_encoding": "utf8",
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        "tcp_user_timeout": 60_000,
    }
    if username is not None:
        options["user"] = username
    if password is not None:
        options["password"] = password.get_secret_value()
    texts: TlsTexts | None = None if tls is None else tls.texts(context)
    return {"url": url.get_secret_value(), "options": options, "tls": texts}
