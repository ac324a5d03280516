"""A client for many requests at once: libcurl on the event loop of a worker takes a fifth of the CPU time per request
that clients in Python take."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pycurl

from headrace.systems.services import service_unavailable, untrusted_connection
from headrace.systems.tls import TlsTexts

_UNTRUSTED = (
    pycurl.E_SSL_CONNECT_ERROR,
    pycurl.E_PEER_FAILED_VERIFICATION,
    pycurl.E_SSL_CERTPROBLEM,
    pycurl.E_SSL_CACERT_BADFILE,
    pycurl.E_SSL_ISSUER_ERROR,
    pycurl.E_SSL_CIPHER,
)
GATEWAY_STATUSES = (502, 503, 504)
"""A gateway answers, and the service behind it does not."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request, ready to be sent."""

    url: str
    headers: tuple[str, ...] = ()
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer of a server."""

    status: int
    body: bytes
    wait: float | None = None
    """The seconds that `Retry-After` requests."""
    location: str | None = None
    """Where a redirection leads."""

    @property
    def text(self) -> str:
        """Status and beginning of the body in one line, for messages."""
        excerpt = " ".join(self.body[:200].decode(errors="replace").split())
        return f"HTTP {self.status} {excerpt}".strip()


class NoReplyError(Exception):
    """A request without a reply; the text is the reason."""

    def __init__(self, kind: Literal["timeout", "connection", "too-large"], reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


@dataclass
class AsyncHttpClient:
    """Sends requests of one method to one server. Pickled to the workers before the first."""

    label: str
    method: str
    headers: Mapping[str, str] = field(repr=False)
    login: tuple[str, str] | None = field(repr=False)
    token: str | None = field(repr=False)
    tls: TlsTexts = field(repr=False)
    timeout: float
    connect_timeout: float
    max_response: int
    _multi: Any = field(default=None, repr=False)
    _idle: list[Any] = field(default_factory=list, repr=False)

    async def send(self, request: Request) -> Reply:
        """The reply, whatever its status. Raises NoReplyError, and a ProjectError when the server is not trusted."""
        handle = self._idle.pop() if self._idle else self._handle()
        handle.setopt(pycurl.URL, request.url)
        if request.headers:
            handle.setopt(pycurl.HTTPHEADER, [*self._fixed_headers(), *request.headers])
        if self.method != "GET":
            handle.setopt(pycurl.POSTFIELDS, request.body or b"")
        try:
            reply = await self._perform(handle)
        except NoReplyError:
            self._idle.append(handle)
            raise
        self._idle.append(handle)
        return reply

    async def probe(self, url: str, *, head: bool, timeout: float) -> None:
        """Raise a ProjectError unless the service itself answers, not just a gateway in front of it."""
        handle = self._handle(method="GET")
        handle.setopt(pycurl.NOBODY, head)
        handle.setopt(pycurl.URL, url)
        handle.setopt(pycurl.TIMEOUT_MS, round(timeout * 1000))
        try:
            reply = await self._perform(handle)
        except NoReplyError as error:
            if error.kind == "too-large":
                return
            raise service_unavailable(self.label, str(error)) from error
        finally:
            handle.close()
        if reply.status in GATEWAY_STATUSES or (reply.status >= 500 and not head):
            raise service_unavailable(self.label, reply.text)

    async def close(self) -> None:
        if self._multi is not None:
            await self._multi.aclose()
            self._multi = None
        for handle in self._idle:
            handle.close()
        self._idle.clear()

    async def _perform(self, handle: Any) -> Reply:
        if self._multi is None:
            self._multi = pycurl.AsyncCurlMulti()
        body = _Body(self.max_response)
        handle.setopt(pycurl.WRITEFUNCTION, body.take)
        try:
            await self._multi.perform(handle)
        except pycurl.error as error:
            raise self._failure(error, body) from None
        status = handle.getinfo(pycurl.RESPONSE_CODE)
        wait = handle.getinfo(pycurl.RETRY_AFTER) if status in (429, 503) else 0
        location = handle.getinfo(pycurl.REDIRECT_URL) if 300 <= status < 400 else None
        return Reply(status, b"".join(body.parts), float(wait) if wait else None, location)

    def _failure(self, error: pycurl.error, body: _Body) -> Exception:
        code, reason = error.args[0], error.args[1] if len(error.args) > 1 else ""
        if body.too_long or code == pycurl.E_FILESIZE_EXCEEDED:
            return NoReplyError("too-large", f"the answer has more than {self.max_response:,} bytes")
        if code in _UNTRUSTED:
            return untrusted_connection(self.label, reason)
        if code == pycurl.E_OPERATION_TIMEDOUT:
            return NoReplyError("timeout", f"no answer within {self.timeout:g} s")
        return NoReplyError("connection", reason or f"curl error {code}")

    def _fixed_headers(self) -> Sequence[str]:
        login = [] if self.token is None else [f"Authorization: Bearer {self.token}"]
        # without `Expect` libcurl would ask before it sends a longer body
        return [*(f"{name}: {value}" for name, value in self.headers.items()), *login, "Expect:"]

    def _handle(self, method: str | None = None) -> Any:
        handle = pycurl.Curl()
        options: dict[int, Any] = {
            pycurl.NOSIGNAL: 1,
            pycurl.PROTOCOLS: pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS,
            pycurl.FOLLOWLOCATION: 0,
            pycurl.PATH_AS_IS: 1,
            pycurl.ACCEPT_ENCODING: "",
            pycurl.USERAGENT: "headrace",
            pycurl.HTTPHEADER: self._fixed_headers(),
            pycurl.TIMEOUT_MS: round(self.timeout * 1000),
            pycurl.CONNECTTIMEOUT_MS: round(self.connect_timeout * 1000),
            pycurl.MAXFILESIZE_LARGE: self.max_response,
        }
        match method or self.method:
            case "POST":
                options[pycurl.POST] = 1
            case "PUT":
                options |= {pycurl.POST: 1, pycurl.CUSTOMREQUEST: "PUT"}
        for option, value in {**options, **self._identity()}.items():
            handle.setopt(option, value)
        return handle

    def _identity(self) -> dict[int, Any]:
        options: dict[int, Any] = {}
        if self.login is not None:
            options |= {pycurl.HTTPAUTH: pycurl.HTTPAUTH_BASIC}
            options |= {pycurl.USERNAME: self.login[0], pycurl.PASSWORD: self.login[1]}
        if not self.tls.verify:
            options |= {pycurl.SSL_VERIFYPEER: 0, pycurl.SSL_VERIFYHOST: 0}
        if self.tls.ca is not None:
            options[pycurl.CAINFO_BLOB] = self.tls.ca.encode()
        else:
            options |= _known_authorities()
        if self.tls.certificate is not None and self.tls.key is not None:
            options[pycurl.SSLCERT_BLOB] = self.tls.certificate.encode()
            options[pycurl.SSLKEY_BLOB] = self.tls.key.encode()
        return options


class _Body:
    def __init__(self, most: int) -> None:
        self.parts: list[bytes] = []
        self._left = most
        self.too_long = False

    def take(self, part: bytes) -> int | None:
        self._left -= len(part)
        if self._left < 0:
            self.too_long = True
            return 0  # fewer than there were: libcurl stops
        self.parts.append(part)
        return None


def _known_authorities() -> dict[int, Any]:
    """Those of the operating system: the libcurl of a wheel does not know where they are."""
    paths = ssl.get_default_verify_paths()
    if paths.cafile:
        return {pycurl.CAINFO: paths.cafile}
    return {pycurl.CAPATH: paths.capath} if paths.capath else {}
