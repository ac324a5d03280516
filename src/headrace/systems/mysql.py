"""Connections to a MySQL or MariaDB server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

_PORT = 3306
_READ_SECONDS = 600
ACCESS_DENIED = frozenset({1044, 1045, 1142, 1698})
"""Error codes of a wrong login or a missing privilege."""


@dataclass(frozen=True)
class MySqlAddress:
    """Where a server is and who logs in. Its repr shows no password."""

    url: str = field(repr=False)
    username: str | None = None
    """Instead of the one in the URL."""
    secret: str | None = field(default=None, repr=False)
    """The password, instead of the one in the URL."""

    @property
    def user(self) -> str:
        return self.username or unquote(urlsplit(self.url).username or "")

    @property
    def password(self) -> str:
        return unquote(urlsplit(self.url).password or "") if self.secret is None else self.secret

    @property
    def host_port(self) -> str:
        parts = urlsplit(self.url)
        return f"{parts.hostname}:{parts.port or _PORT}"

    @property
    def database(self) -> str:
        return unquote(urlsplit(self.url).path.strip("/"))

    @property
    def parameters(self) -> Mapping[str, str]:
        """The query of the URL."""
        return dict(parse_qsl(urlsplit(self.url).query))

    def login(self, connect_timeout: float) -> dict[str, Any]:
        """Arguments of a connection of pymysql or of a reader of the binlog."""
        parts = urlsplit(self.url)
        return {
            "host": parts.hostname or "127.0.0.1",
            "port": parts.port or _PORT,
            "user": self.user,
            "password": self.password,
            "charset": "utf8mb4",
            "connect_timeout": max(1, round(connect_timeout)),
        }

    def arguments(self, connect_timeout: float) -> dict[str, Any]:
        """Arguments of `pymysql.connect` for a session in which every statement is its own transaction."""
        return {**self.login(connect_timeout), "autocommit": True, "read_timeout": _READ_SECONDS}


def error_code(error: Exception) -> int:
    """The number of an error of the server or the client; 0 when it has none."""
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0


def error_text(error: Exception) -> str:
    """The text of an error without its number."""
    return str(error.args[-1]) if error.args else str(error) or type(error).__name__
