"""Addresses of services as options: what is wrong with one is said when the project is read."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, SecretStr

_LOGIN = "write `username` and `password`"


def http_address(value: str, advice: str, login: str = _LOGIN) -> str:
    """An address of HTTP without names and passwords in it; `advice` says how it is written."""
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"'{value}' is {advice}")
    _without_login(parts, login)
    return value


def _redis(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("redis", "rediss") or not parts.hostname:
        raise ValueError(f"'{value}' is not the address of a server; write redis://host:port/0, or rediss:// for TLS")
    _without_login(parts, _LOGIN)
    database = parts.path.strip("/")
    if database and not database.isdecimal():
        raise ValueError(f"'{database}' is not the number of a database")
    return value


def _postgres(value: SecretStr) -> SecretStr:
    parts = urlsplit(value.get_secret_value())
    if parts.scheme not in ("postgresql", "postgres") or not parts.hostname:
        raise ValueError("not the address of a database; write postgresql://host:port/database")
    return value


def _without_login(parts: SplitResult, instead: str) -> None:
    if "@" in parts.netloc:
        raise ValueError(f"names and passwords do not belong in the address; {instead}")


RedisUrl = Annotated[str, AfterValidator(_redis)]
PostgresUrl = Annotated[SecretStr, AfterValidator(_postgres)]
"""May hold a password, so it is a secret as a whole."""


def redis_place(url: str) -> tuple[str, int, int]:
    """Host, port and number of the database."""
    parts = urlsplit(url)
    return str(parts.hostname), parts.port or 6379, int(parts.path.strip("/") or 0)
