"""What all routes of an API process share: who asks, the doors, bodies and answers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from headrace.core.errors import RequestError
from headrace.project.model import is_loopback
from headrace.serve.access import Doors
from headrace.serve.auth import Callers, token_of
from headrace.serve.grants import Grant
from headrace.serve.meters import Meters
from headrace.serve.replies import coding, compressed, json_body, takes
from headrace.serve.settings import Settings
from headrace.serve.stores import Stores

JSON = "application/json"


class Front:
    """One per API process."""

    def __init__(self, settings: Settings, stores: Stores) -> None:
        spec = settings.spec
        self.settings = settings
        self.stores = stores
        self.doors = Doors.of(settings, stores)
        self.callers = Callers(spec, settings.project, root=settings.root, shared=settings.store / "limits")
        self.meters = Meters(settings.store)
        self.vary = "accept-encoding, authorization, x-api-key" if self.callers.wanted else "accept-encoding"

    def grant(self, connection: HTTPConnection) -> Grant:
        """What whoever sent this may do."""
        headers = connection.headers
        return self.grant_of(token_of(headers.get("authorization"), headers.get("x-api-key")), connection)

    def grant_of(self, token: str | None, connection: HTTPConnection) -> Grant:
        """The same, for a token that was found elsewhere."""
        self.check_host(connection.headers.get("host"))
        client = connection.client
        return self.callers.grant(token, "" if client is None else client.host)

    def check_host(self, host: str | None) -> None:
        """Where nobody needs a token, a page from elsewhere must not get at the data by a name that it has made to
        mean this machine."""
        if not self.callers.wanted and host is not None and not _here(host):
            raise RequestError(
                "host-forbidden",
                "without 'serve.auth' only requests to this machine itself are answered",
                status=403,
                hint="ask localhost or 127.0.0.1, or set 'serve.auth'",
            )

    async def document(self, request: Request) -> Any:
        """The JSON that a request brings."""
        return await json_body(request, self.settings.spec.limits.body)

    def answer(
        self, request: Request, body: bytes, headers: Mapping[str, str] | None = None, status: int = 200
    ) -> Response:
        """JSON for the caller, compressed if it takes that."""
        check_accept(request)
        accepted = request.headers.get("accept-encoding", "").encode("latin-1")
        sent, name = compressed(body, coding(accepted))
        more = {"cache-control": "no-cache", "vary": self.vary, **(headers or {})}
        if name is not None:
            more["content-encoding"] = name
        return Response(sent, status, more, media_type=JSON)


def check_accept(request: Request, kind: str = JSON) -> None:
    """A RequestError if the caller does not take that kind of answer."""
    if not takes(request.headers.get("accept", "").encode("latin-1"), kind):
        raise not_acceptable(kind)


def not_acceptable(kind: str) -> RequestError:
    """The caller takes only what there is not."""
    return RequestError("not-acceptable", f"the answer is {kind}", status=406, hint=f"send 'Accept: {kind}'")


@lru_cache(maxsize=256)
def _here(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        return False
    return name is not None and is_loopback(name)
