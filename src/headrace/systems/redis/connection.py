"""Options of a connection to a Redis database. Does not load the client library."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, model_validator

from headrace.core.component import Options
from headrace.core.context import Context
from headrace.systems.tls import ServiceTls, TlsTexts

_PORT = 6379


def _check_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("redis", "rediss") or not parts.hostname:
        raise ValueError(f"'{value}' is not the address of a server; write redis://host:port/0, or rediss:// for TLS")
    if "@" in parts.netloc:
        raise ValueError("names and passwords do not belong in the address; write `username` and `password`")
    database = parts.path.strip("/")
    if database and not database.isdecimal():
        raise ValueError(f"'{database}' is not the number of a database")
    return value


@dataclass(frozen=True)
class RedisServer:
    """One database of one server; pickled to the workers."""

    label: str
    host: str
    port: int
    database: int
    username: str | None
    password: str | None = field(repr=False)
    tls: TlsTexts | None = field(repr=False)


class RedisConnection(Options):
    """How a kind connects to a Redis database."""

    url: Annotated[str, AfterValidator(_check_url)] = Field(
        description="Address of the server and number of the database; rediss:// for TLS.",
        examples=["redis://127.0.0.1:6379/0"],
    )
    username: str | None = Field(None, description="The name to log in with.")
    password: SecretStr | None = Field(
        None, description="The password to log in with; take it from a secret.", examples=["${secret:REDIS_PASSWORD}"]
    )
    tls: ServiceTls = Field(ServiceTls(), description="For rediss: whom to trust.", examples=[{"ca": "tls/ca.pem"}])

    @model_validator(mode="after")
    def _check_login(self) -> Self:
        if self.username is not None and self.password is None:
            raise ValueError("`username` needs `password`")
        if self.tls.certificate is not None:
            raise ValueError("client certificates are not supported for Redis: log in with `username` and `password`")
        return self

    @property
    def address(self) -> str:
        return urlsplit(self.url).netloc

    def server(self, label: str, context: Context) -> RedisServer:
        """The database, with the files of `tls` read."""
        parts = urlsplit(self.url)
        return RedisServer(
            label=label,
            host=str(parts.hostname),
            port=parts.port or _PORT,
            database=int(parts.path.strip("/") or 0),
            username=self.username,
            password=self.password.get_secret_value() if self.password else None,
            tls=self.tls.texts(context) if parts.scheme == "rediss" else None,
        )
