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
from headrace.serve.access.access import Doors
from headrace.serve.access.auth import Callers, token_of
from headrace.serve.access.grants import Grant
from headrace.serve.access.stores import Stores
from headrace.serve.base.meters import Meters
from headrace.serve.base.settings import Settings
from headrace.serve.http.replies import coding, compressed, json_body, takes

JSON = "application/json"
Client = tuple[str, int] | None
"""Address and port of who asks."""
_HOSTS = 256


class Front:
    """One per API process."""

    def __init__(self, settings: Settings, stores: Stores) -> None:
        spec = settings.spec
        self.settings = settings
        self.stores = stores
        self.doors = Doors.of(settings, stores)
        self.callers = Callers(spec, settings.project, root=settings.root, shared=settings.store / "limits")
        self.meters = Meters(settings.store)
        self._hosts: set[bytes | None] = set()
        self.vary = "accept-encoding, authorization, x-api-key" if self.callers.wanted else "accept-encoding"

    def grant(self, connection: HTTPConnection) -> Grant:
        """What whoever sent this may do."""
        return self.grant_by(dict(connection.scope["headers"]), connection.scope.get("client"))

    def grant_by(self, headers: Mapping[bytes, bytes], client: Client) -> Grant:
        """The same, of a bare request."""
        host = headers.get(b"host")
        if not self.callers.wanted and host not in self._hosts:
            self.check_host(_text(host))
            if len(self._hosts) < _HOSTS:
                self._hosts.add(host)
        if self.callers.anyone is not None:
            return self.callers.anyone
        shown = None
        if self.callers.wanted:
            shown = token_of(_text(headers.get(b"authorization")), _text(headers.get(b"x-api-key")))
        return self.callers.grant(shown, "" if client is None else client[0])

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
        check_accept(request, JSON)
        sent, name = compressed(body, coding(dict(request.scope["headers"]).get(b"accept-encoding", b"")))
        more = {"cache-control": "no-cache", "vary": self.vary, **(headers or {})}
        if name is not None:
            more["content-encoding"] = name
        return Response(sent, status, more, media_type=JSON)


def check_accept(request: Request, kind: str) -> None:
    """A RequestError if the caller does not take that kind of answer."""
    if not takes(dict(request.scope["headers"]).get(b"accept", b""), kind):
        raise not_acceptable(kind)


def not_acceptable(kind: str) -> RequestError:
    """The caller takes only what there is not."""
    return RequestError("not-acceptable", f"the answer is {kind}", status=406, hint=f"send 'Accept: {kind}'")


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")


@lru_cache(maxsize=256)
def _here(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        return False
    return name is not None and is_loopback(name)
