"""The way in: a server of endpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.client.endpoint import EndpointClient, jsonable
from headrace.client.frames import Answer
from headrace.client.table import TableClient
from headrace.client.transport import Transport


class Client:
    """A server of endpoints. Safe for several threads.

    A server that is busy, not ready or gone is asked again for up to `patience` seconds; then the error is raised.
    """

    def __init__(self, url: str, token: str | None = None, *, timeout: float = 30.0, patience: float = 30.0) -> None:
        self._transport = Transport(url, token, timeout, patience)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self._transport.url!r})"

    def close(self) -> None:
        """Give up the connections."""
        self._transport.close()

    def endpoints(self) -> list[str]:
        """The endpoints that can be asked with this token."""
        found, _ = self._transport.ask("GET", "/")
        return [str(path).strip("/") for path in found]

    def endpoint(self, name: str) -> EndpointClient:
        """One of them. `films@v2`: that version of it."""
        return EndpointClient(self._transport, name)

    def table(self, name: str) -> TableClient:
        """A table that takes changes."""
        return TableClient(self._transport, name)

    def health(self) -> dict[str, Any]:
        """What the server says of itself and its endpoints."""
        found, _ = self._transport.ask("GET", "/health")
        return dict(found)

    def sql(self, text: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None) -> Answer:
        """The answer to a question in SQL over endpoints and lake tables. Parameters: `?`, `$1` or `$name`."""
        document: dict[str, Any] = {"sql": text}
        if parameters is not None:
            document["parameters"] = json.loads(json.dumps(parameters, default=jsonable))
        found, _ = self._transport.ask("POST", "/sql", document)
        columns = {column["name"]: column["type"] for column in found["columns"]}
        return Answer(columns, found["rows"], found["truncated"])
