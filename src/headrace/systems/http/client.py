"""A client that retries requests while the server is unavailable."""

from __future__ import annotations

import base64
import gzip
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cached_property
from urllib.parse import urlsplit

import urllib3

from headrace.core.errors import ProjectError
from headrace.systems.services import SERVICE_BACKOFF, access_denied, service_unavailable, untrusted_connection
from headrace.systems.tls import TlsTexts

_LONGEST_EXCERPT = 300
_LONGEST_REQUESTED_WAIT = 30.0
_LONGEST_CONNECT_SECONDS = 10.0


@dataclass(frozen=True)
class HttpReply:
    """The answer of a server."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def ok(self) -> bool:
        """Whether the status is a success."""
        return 200 <= self.status < 300

    @property
    def redirects(self) -> bool:
        """Whether the server redirects to another address."""
        return 300 <= self.status < 400

    @property
    def text(self) -> str:
        """Status and beginning of the body, for messages."""
        return f"HTTP {self.status} {self.body[:_LONGEST_EXCERPT].decode(errors='replace').strip()}".strip()


@dataclass(frozen=True)
class HttpClient:
    """Sends requests to one server. Pickled to the workers before its first request."""

    label: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    timeout: float
    retry_for: float
    tls: TlsTexts = field(repr=False)

    @cached_property
    def _pool(self) -> urllib3.PoolManager:
        timeout = urllib3.Timeout(connect=min(self.timeout, _LONGEST_CONNECT_SECONDS), read=self.timeout)
        secure = urlsplit(self.url).scheme == "https"
        context = self.tls.ssl_context() if secure else None
        return urllib3.PoolManager(maxsize=64, block=True, timeout=timeout, retries=False, ssl_context=context)

    def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        whole_url: bool = False,
    ) -> HttpReply:
        """The reply to a request, which is retried for `retry_for` seconds while the server is unavailable or busy.

        Redirections are not followed. Raises a ProjectError when the server denies access.
        """
        url = path if whole_url else self.url + path
        all_headers = {**self.headers, **(headers or {})}
        retries = SERVICE_BACKOFF.within(self.retry_for)
        while True:
            try:
                response = self._pool.request(method, url, body=body, headers=all_headers, redirect=False)
            except urllib3.exceptions.SSLError as error:
                raise _untrusted(self.label, error) from error
            except urllib3.exceptions.HTTPError as error:
                reason, requested_wait = failure_text(error), None
            else:
                reply = HttpReply(response.status, response.data, response.headers)
                if reply.status in (401, 403, 407):
                    raise access_denied(self.label, reply.text)
                if not self.may_succeed_later(reply):
                    return reply
                reason, requested_wait = reply.text, retry_after(response.headers.get("Retry-After"))
            if not retries.wait(requested_wait):
                raise service_unavailable(self.label, reason)

    def may_succeed_later(self, reply: HttpReply) -> bool:
        """Whether to retry the request; a server with its own error codes knows better than its HTTP status."""
        return is_transient(reply.status)


def is_transient(status: int) -> bool:
    """Whether a later attempt may have another status."""
    return status in (408, 425, 429) or status >= 500


def basic_authentication(login: tuple[str, str] | None) -> dict[str, str]:
    """The header of basic authentication; none without user and password."""
    if login is None:
        return {}
    return {"Authorization": f"Basic {base64.b64encode(':'.join(login).encode()).decode()}"}


def gzipped(body: bytes) -> tuple[bytes, dict[str, str]]:
    """A body compressed with gzip, and the header for it."""
    return gzip.compress(body, 1, mtime=0), {"Content-Encoding": "gzip"}


def retry_after(header: str | None) -> float | None:
    """The seconds that a `Retry-After` header requests, at most 30; it holds seconds or a date."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            moment = parsedate_to_datetime(header)
        except ValueError:
            return None
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        seconds = (moment - datetime.now(UTC)).total_seconds()
    return min(max(seconds, 0.0), _LONGEST_REQUESTED_WAIT)


def failure_text(error: urllib3.exceptions.HTTPError) -> str:
    """Why a request failed, without the addresses of Python objects."""
    text = str(getattr(error, "reason", None) or error)
    return text.split(": ", 1)[-1] if " object at 0x" in text else text or type(error).__name__


def _untrusted(label: str, error: Exception) -> ProjectError:
    causes = (error, error.__cause__, *error.args)
    return untrusted_connection(label, str(next((cause for cause in causes if isinstance(cause, ssl.SSLError)), error)))
