"""The client of a Redis server: many keys in one round trip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import redis
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from headrace.processors._enrich import templates
from headrace.processors._enrich.async_requests import FailedRequest, NoMatch, ServiceClient, timed_out, unreachable
from headrace.systems.redis.client import check_access, connection_arguments, is_transient
from headrace.systems.redis.connection import RedisServer
from headrace.systems.services import service_unavailable

Holds = Literal["json", "hash", "text", "set"]


@dataclass
class RedisService(ServiceClient):
    """Gets keys. Pickled to the workers; connects on first use."""

    label: str
    server: RedisServer
    key: templates.Text
    holds: Holds
    capacity: int
    timeout: float
    connect_timeout: float
    max_response: int
    together: int
    _client: redis.asyncio.Redis | None = field(default=None, repr=False)

    def request_for(self, values: Sequence[Any]) -> str:
        return self.key.filled(values)

    async def call(self, requests: Sequence[Any]) -> list[Any]:
        try:
            async with self._connected().pipeline(transaction=False) as pipe:
                # not MGET: it does not report a key of another type
                get = {"hash": pipe.hgetall, "set": pipe.smembers}.get(self.holds, pipe.get)
                for key in requests:
                    get(key)
                replies = await pipe.execute(raise_on_error=False)
        except redis.RedisError as error:
            return [self._refusal(error)] * len(requests)
        return [self._answer(one) for one in replies]

    async def probe(self) -> None:
        try:
            await self._connected().ping()
        except redis.RedisError as error:
            refusal = self._refusal(error)
            if refusal.transient:
                raise service_unavailable(self.label, refusal.detail) from error

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    def _connected(self) -> redis.asyncio.Redis:
        if self._client is None:
            arguments = connection_arguments(self.server, self.timeout, self.connect_timeout)
            self._client = redis.asyncio.Redis(
                max_connections=self.capacity + 1, retry=Retry(NoBackoff(), 0), **arguments
            )
        return self._client

    def _answer(self, found: Any) -> Any:
        if isinstance(found, redis.RedisError):
            return self._refusal(found)
        if not found and not isinstance(found, bytes):
            return NoMatch()
        size = _size(found)
        if size > self.max_response:
            return FailedRequest("response-too-large", f"the value has more than {self.max_response:,} bytes")
        if isinstance(found, dict):
            return {_text(name): _text(value) for name, value in found.items()}
        if isinstance(found, set):
            return [_text(one) for one in sorted(found)]
        if self.holds == "text":
            return _text(found)
        try:
            return msgspec.json.decode(found)
        except msgspec.DecodeError as error:
            return FailedRequest("bad-answer", f"the value is not JSON: {error}")

    def _refusal(self, error: redis.RedisError) -> FailedRequest:
        check_access(self.label, error)
        message = str(error) or type(error).__name__
        if isinstance(error, redis.TimeoutError):
            return timed_out(self.timeout)
        if is_transient(error):
            return unreachable(message)
        if message.startswith("WRONGTYPE"):
            return FailedRequest("wrong-type", f"the key does not hold what `holds: {self.holds}` says", "4xx")
        return FailedRequest("redis-error", message, "other")


def _size(found: bytes | dict[bytes, bytes] | set[bytes]) -> int:
    if isinstance(found, dict):
        return sum(map(len, (*found, *found.values())))
    return sum(map(len, found)) if isinstance(found, set) else len(found)


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
