"""The client of a serve node or of a cluster of serve nodes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.client.endpoint import EndpointClient, jsonable
from headrace.client.frames import Answer
from headrace.client.table import TableClient
from headrace.client.transport import Transport


class Client:
    """A client of served endpoints. Thread-safe.

    A request to a server that is busy, not ready or unreachable is retried for up to `patience` seconds; then the error
    is raised.
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
        self._transport.close()

    def endpoints(self) -> list[str]:
        """The endpoints that the token may read."""
        paths, _ = self._transport.ask("GET", "/")
        return [str(path).strip("/") for path in paths]

    def endpoint(self, name: str) -> EndpointClient:
        """The endpoint of that name; `films@v2` is version 2 of it."""
        return EndpointClient(self._transport, name)

    def table(self, name: str) -> TableClient:
        """A table that accepts changes."""
        return TableClient(self._transport, name)

    def health(self) -> dict[str, Any]:
        """The status of the server and its endpoints."""
        document, _ = self._transport.ask("GET", "/health")
        return dict(document)

    def sql(self, text: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None) -> Answer:
        """Run an SQL query over endpoints and lake tables. Parameters: `?`, `$1` or `$name`."""
        document: dict[str, Any] = {"sql": text}
        if parameters is not None:
            document["parameters"] = json.loads(json.dumps(parameters, default=jsonable))
        result, _ = self._transport.ask("POST", "/sql", document)
        columns = {column["name"]: column["type"] for column in result["columns"]}
        return Answer(columns, result["rows"], result["truncated"])
