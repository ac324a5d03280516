"""Clients of a Redis server, and what its errors mean."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from headrace.systems.redis.connection import RedisServer
from headrace.systems.services import SERVICE_BACKOFF, access_denied, service_unavailable, untrusted_connection

# also a server that moves its data, or has no memory or no replica at the moment; only some errors have classes
_TRANSIENT = (
    redis.ConnectionError,
    redis.TimeoutError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.OutOfMemoryError,
    redis.exceptions.TryAgainError,
    redis.exceptions.MasterDownError,
    redis.exceptions.ClusterDownError,
)
_TRANSIENT_WORDS = re.compile(r"\b(MISCONF|NOREPLICAS|BUSY|LOADING)\b")
_LONGEST_CONNECT_SECONDS = 10.0
Result = TypeVar("Result")


def connection_arguments(server: RedisServer, timeout: float, connect_timeout: float) -> dict[str, Any]:
    """Arguments of the clients of the library, both the blocking and the asynchronous one."""
    arguments: dict[str, Any] = {
        "host": server.host,
        "port": server.port,
        "db": server.database,
        "username": server.username,
        "password": server.password,
        "socket_timeout": timeout,
        "socket_connect_timeout": connect_timeout,
        "ssl": server.tls is not None,
    }
    if server.tls is not None:
        arguments |= {"ssl_ca_data": server.tls.ca, "ssl_check_hostname": server.tls.verify}
        arguments |= {"ssl_cert_reqs": "required" if server.tls.verify else "none"}
    return arguments


def check_access(label: str, error: redis.RedisError) -> None:
    """Raise a ProjectError when the server denies access or cannot be trusted."""
    reason = str(error)
    if isinstance(error, redis.AuthenticationError | redis.exceptions.NoPermissionError):
        raise access_denied(label, reason) from error
    if isinstance(error, redis.ConnectionError) and ("certificate" in reason.lower() or "SSL" in reason):
        raise untrusted_connection(label, reason) from error


def is_transient(error: redis.RedisError) -> bool:
    """Whether a later attempt may succeed."""
    return isinstance(error, _TRANSIENT) or _TRANSIENT_WORDS.search(str(error)) is not None


@dataclass(frozen=True)
class RedisClient:
    """A client that connects at its first call. Pickled to the workers before."""

    server: RedisServer
    timeout: float
    retry_for: float

    @property
    def label(self) -> str:
        """The keys and the server, for messages."""
        return self.server.label

    @cached_property
    def _connection(self) -> redis.Redis:
        arguments = connection_arguments(self.server, self.timeout, min(self.timeout, _LONGEST_CONNECT_SECONDS))
        return redis.Redis(retry=Retry(NoBackoff(), 0), **arguments)  # `call` does the retries

    def call(self, action: Callable[[redis.Redis], Result]) -> Result:
        """The result of an action, which is retried for `retry_for` seconds while the server is unavailable or busy."""
        retries = SERVICE_BACKOFF.within(self.retry_for)
        while True:
            try:
                return action(self._connection)
            except redis.RedisError as error:
                check_access(self.label, error)
                if not is_transient(error):
                    raise
                if not retries.wait():
                    raise service_unavailable(self.label, str(error)) from error
