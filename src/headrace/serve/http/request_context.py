"""What all routes of an API process share: authentication, access to endpoints, request bodies and responses."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from headrace.core.errors import RequestError
from headrace.project.model import is_loopback
from headrace.serve.access.access import AccessControl
from headrace.serve.access.auth import Callers, token_of
from headrace.serve.access.grants import Grant
from headrace.serve.access.stores import Stores
from headrace.serve.base.meters import Meters
from headrace.serve.base.settings import Settings
from headrace.serve.http.replies import accepts, coding, compressed, json_body

JSON = "application/json"
Client = tuple[str, int] | None
"""Address and port of the caller."""
_HOSTS = 256


class RequestContext:
    """The shared services of the routes; one per API process."""

    def __init__(self, settings: Settings, stores: Stores) -> None:
        spec = settings.spec
        self.settings = settings
        self.stores = stores
        self.access = AccessControl.of(settings, stores)
        self.callers = Callers(spec, settings.project, root=settings.root, shared=settings.store / "limits")
        self.meters = Meters(settings.store)
        self._hosts: set[bytes | None] = set()
        self.vary = "accept-encoding, authorization, x-api-key" if self.callers.auth_required else "accept-encoding"

    def grant(self, connection: HTTPConnection) -> Grant:
        return self.grant_by(dict(connection.scope["headers"]), connection.scope.get("client"))

    def grant_by(self, headers: Mapping[bytes, bytes], client: Client) -> Grant:
        """The grant of the caller, from bare headers."""
        host = headers.get(b"host")
        if not self.callers.auth_required and host not in self._hosts:
            self.check_host(_text(host))
            if len(self._hosts) < _HOSTS:
                self._hosts.add(host)
        if self.callers.anyone is not None:
            return self.callers.anyone
        token = None
        if self.callers.auth_required:
            token = token_of(_text(headers.get(b"authorization")), _text(headers.get(b"x-api-key")))
        return self.callers.grant(token, "" if client is None else client[0])

    def grant_of(self, token: str | None, connection: HTTPConnection) -> Grant:
        """The grant of a token that was not in the usual headers."""
        self.check_host(connection.headers.get("host"))
        client = connection.client
        return self.callers.grant(token, "" if client is None else client.host)

    def check_host(self, host: str | None) -> None:
        """Reject foreign host names where no token is required: a web page could otherwise read the data through a name
        that resolves to this machine (DNS rebinding)."""
        if not self.callers.auth_required and host is not None and not _is_local(host):
            raise RequestError(
                "host-forbidden",
                "without 'serve.auth' only requests to this machine are answered",
                status=403,
                hint="use localhost or 127.0.0.1, or set 'serve.auth'",
            )

    async def document(self, request: Request) -> Any:
        """The JSON body of a request."""
        return await json_body(request, self.settings.spec.limits.body)

    def answer(
        self, request: Request, body: bytes, headers: Mapping[str, str] | None = None, status: int = 200
    ) -> Response:
        """A JSON response, compressed if the caller accepts it."""
        check_accept(request, JSON)
        sent, name = compressed(body, coding(dict(request.scope["headers"]).get(b"accept-encoding", b"")))
        more = {"cache-control": "no-cache", "vary": self.vary, **(headers or {})}
        if name is not None:
            more["content-encoding"] = name
        return Response(sent, status, more, media_type=JSON)


def check_accept(request: Request, kind: str) -> None:
    """RequestError if the caller does not accept the media type."""
    if not accepts(dict(request.scope["headers"]).get(b"accept", b""), kind):
        raise not_acceptable(kind)


def not_acceptable(kind: str) -> RequestError:
    return RequestError("not-acceptable", f"the response is {kind}", status=406, hint=f"send 'Accept: {kind}'")


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")


@lru_cache(maxsize=256)
def _is_local(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        return False
    return name is not None and is_loopback(name)
