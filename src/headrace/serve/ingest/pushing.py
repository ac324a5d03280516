"""Changes of tables that callers push: they are validated, made durable and then answered."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from headrace.core.errors import RequestError, did_you_mean
from headrace.log.inbox import Inbox, Pushed
from headrace.serve.access.grants import Grant
from headrace.serve.base.settings import Settings
from headrace.serve.http.replies import json_body, require_type
from headrace.serve.http.request_context import RequestContext
from headrace.serve.ingest.group_commit import GroupCommit
from headrace.tables.push.rows import PushRows, decode

_FEW = 200
"""The most changes that are validated on the event loop; more would block other callers."""


class TableIngest:
    """The tables of one process that accept changes."""

    def __init__(self, settings: Settings) -> None:
        self._tables = {
            name: _TableCommit(PushRows(name, table.declared), Inbox(settings.log, name, table.max_age))
            for name, table in settings.tables.items()
        }

    def names(self, grant: Grant) -> list[str]:
        """The tables that a caller may write."""
        return [name for name in sorted(self._tables) if grant.may_write(name)]

    async def push(self, grant: Grant, name: str, document: Any, key: str | None) -> dict[str, int]:
        """Accept changes and answer when they are durable. RequestError when they are not accepted."""
        table = self._table(grant, name)
        pushed = await table.validated(document, key)
        return {"accepted": len(pushed.entries), "position": await table.commit(pushed)}

    def _table(self, grant: Grant, name: str) -> _TableCommit:
        grant.check("write")
        shown = name[:100]
        if not grant.may_write(name):
            raise RequestError(
                "table-forbidden",
                f"this token does not allow writing to '{shown}'",
                status=403,
                hint=f"it allows: {', '.join(self.names(grant)) or 'no table'}",
            )
        if name not in self._tables:
            hint = did_you_mean(shown, self.names(grant), "tables that accept changes")
            raise RequestError("unknown-table", f"no table '{shown}' accepts changes", status=404, hint=hint)
        return self._tables[name]


class _TableCommit(GroupCommit):
    """Accepts the changes of one table."""

    def __init__(self, rows: PushRows, inbox: Inbox) -> None:
        super().__init__(rows.table, inbox)
        self._rows = rows

    async def validated(self, document: Any, key: str | None) -> Pushed:
        """The entries of a request."""
        changes = document.get("changes") if isinstance(document, dict) else None
        if isinstance(changes, list) and len(changes) > _FEW:
            return await asyncio.to_thread(self._rows.pushed, document, key)
        return self._rows.pushed(document, key)


def routes(context: RequestContext, ingest: TableIngest) -> list[BaseRoute]:

    async def push(request: Request) -> Response:
        """Accept changes of a table."""
        grant = context.grant(request)
        require_type(request)
        name = request.path_params["name"]
        document = await json_body(request, context.settings.spec.limits.body, decode)
        if name in ingest.names(grant):
            request.scope["headrace.endpoint"] = name
        answer = await ingest.push(grant, name, document, request.headers.get("idempotency-key"))
        return context.answer(request, msgspec.json.encode(answer))

    return [Route("/tables/{name}", push, methods=["POST"])]
