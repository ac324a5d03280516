"""HTTP by libcurl on the event loop of the worker: a fifth of the CPU time per request of clients in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pycurl

from headrace.processors._enrich.async_requests import PROBE_SECONDS, FailedRequest, timed_out, unreachable
from headrace.systems.services import not_trusted, service_away
from headrace.systems.tls import TlsTexts

_UNTRUSTED = (
    pycurl.E_SSL_CONNECT_ERROR,
    pycurl.E_PEER_FAILED_VERIFICATION,
    pycurl.E_SSL_CERTPROBLEM,
    pycurl.E_SSL_CACERT_BADFILE,
    pycurl.E_SSL_ISSUER_ERROR,
    pycurl.E_SSL_CIPHER,
)
_NOBODY_BEHIND = (502, 503, 504)


@dataclass(frozen=True, slots=True)
class Request:
    """A request of an HTTP client, ready to be sent."""

    url: str
    headers: tuple[str, ...] = ()
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply of a server."""

    status: int
    body: bytes
    wait: float | None = None
    """The value of `Retry-After`, in seconds."""
    location: str | None = None
    """The target of a redirection."""

    @property
    def text(self) -> str:
        """The status and the beginning of the body in one line, for people."""
        said = " ".join(self.body[:200].decode(errors="replace").split())
        return f"HTTP {self.status} {said}".strip()


@dataclass
class CurlClient:
    """Sends requests of one method to one server. Pickled to the workers before the first request."""

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

    async def send(self, request: Request) -> Reply | FailedRequest:
        """The reply, whatever its status, or a failure. A ProjectError: no trusted connection."""
        handle = self._idle.pop() if self._idle else self._handle()
        handle.setopt(pycurl.URL, request.url)
        if request.headers:
            handle.setopt(pycurl.HTTPHEADER, [*self._fixed_headers(), *request.headers])
        if self.method != "GET":
            handle.setopt(pycurl.POSTFIELDS, request.body or b"")
        reply = await self._perform(handle)
        self._idle.append(handle)
        return reply

    async def probe(self, url: str, *, head: bool) -> None:
        """Raises unless the server answers; 502, 503 and 504 of a gateway do not count."""
        handle = self._handle(method="GET")
        handle.setopt(pycurl.NOBODY, head)
        handle.setopt(pycurl.URL, url)
        handle.setopt(pycurl.TIMEOUT_MS, round(PROBE_SECONDS * 1000))
        try:
            reply = await self._perform(handle)
        finally:
            handle.close()
        if isinstance(reply, FailedRequest):
            # an answer that is too long is an answer
            if reply.transient:
                raise service_away(self.label, reply.detail)
        elif reply.status in _NOBODY_BEHIND or (reply.status >= 500 and not head):
            raise service_away(self.label, reply.text)

    async def close(self) -> None:
        if self._multi is not None:
            await self._multi.aclose()
            self._multi = None
        for handle in self._idle:
            handle.close()
        self._idle.clear()

    async def _perform(self, handle: Any) -> Reply | FailedRequest:
        if self._multi is None:
            self._multi = pycurl.AsyncCurlMulti()
        body = _Body(self.max_response)
        handle.setopt(pycurl.WRITEFUNCTION, body.take)
        try:
            await self._multi.perform(handle)
        except pycurl.error as error:
            return self._refusal(error, body)
        status = handle.getinfo(pycurl.RESPONSE_CODE)
        wait = handle.getinfo(pycurl.RETRY_AFTER) if status in (429, 503) else 0
        location = handle.getinfo(pycurl.REDIRECT_URL) if 300 <= status < 400 else None
        return Reply(status, b"".join(body.parts), float(wait) if wait else None, location)

    def _refusal(self, error: pycurl.error, body: _Body) -> FailedRequest:
        code, said = error.args[0], error.args[1] if len(error.args) > 1 else ""
        if body.too_long or code == pycurl.E_FILESIZE_EXCEEDED:
            return FailedRequest("response-too-large", f"the answer has more than {self.max_response:,} bytes")
        if code in _UNTRUSTED:
            raise not_trusted(self.label, said)
        if code == pycurl.E_OPERATION_TIMEDOUT:
            return timed_out(self.timeout)
        return unreachable(said or f"curl error {code}")

    def _fixed_headers(self) -> Sequence[str]:
        login = [] if self.token is None else [f"Authorization: Bearer {self.token}"]
        # without this header libcurl asks the server before it sends a longer body
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
        """The authorities that are trusted, and the client certificate."""
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
            return 0  # a smaller number than it passed: libcurl stops
        self.parts.append(part)
        return None


def _known_authorities() -> dict[int, Any]:
    """The authorities of this machine: the libcurl of a wheel does not know where they are."""
    import ssl

    paths = ssl.get_default_verify_paths()
    if paths.cafile:
        return {pycurl.CAINFO: paths.cafile}
    return {pycurl.CAPATH: paths.capath} if paths.capath else {}
