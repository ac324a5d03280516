"""The client of one table that accepts changes."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from headrace.client.endpoint import jsonable
from headrace.client.transport import Transport


class TableClient:
    """Pushes changes to one table."""

    def __init__(self, transport: Transport, name: str) -> None:
        self.name = name
        self._transport = transport
        self._path = f"/tables/{quote(name, safe='')}"

    def __repr__(self) -> str:
        return f"TableClient({self.name!r})"

    def push(self, changes: Iterable[Mapping[str, Any]], *, idempotency_key: str | None = None) -> dict[str, int]:
        """Send changes such as `{"op": "upsert", "row": {"id": 1}}` atomically; returns when they are durable.

        A failed request is repeated with the same key, so that it counts once. Pass your own key to be able to repeat
        it after a crash of your program, too.
        """
        document = json.loads(json.dumps({"changes": list(changes)}, default=jsonable))
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        answer, _ = self._transport.ask("POST", self._path, document, headers)
        return dict(answer)
