"""Sends requests and retries them when the server is busy or not ready."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import urllib3

from headrace.client.errors import ClientError, UnreachableError, error_of_response
from headrace.core.runtime.backoff import Backoff, Retries

AGAIN = (429, 502, 503, 504)
_BACKOFF = Backoff(first=0.1, longest=10.0, jitter=(0.5, 1.0))
_CONNECT = 10.0


class Transport:
    """The connection to one server. All requests either only read or have an idempotency key, so every failed request
    can be repeated."""

    def __init__(self, url: str, token: str | None, timeout: float, patience: float) -> None:
        if not url.startswith(("http://", "https://")):
            raise ClientError(f"'{url}' is not the URL of a server; use one like http://127.0.0.1:9480")
        self.url = url.rstrip("/")
        self.timeout = timeout
        self.patience = patience
        self._headers = {"Accept": "application/json", "Accept-Encoding": "gzip"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._pool = urllib3.PoolManager(maxsize=8, retries=False)

    def __repr__(self) -> str:
        return f"Transport({self.url!r})"

    def ask(
        self, method: str, path: str, document: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[Any, Mapping[str, str]]:
        """The JSON of the response, and its headers."""
        retries = self.retries()
        while True:
            try:
                response = self._request(method, path, document, headers or {})
            except urllib3.exceptions.HTTPError as error:
                problem: ClientError = self.unreachable(error)
                if not retries.wait():
                    raise problem from error
                continue
            if response.status < 400:
                return _decoded(response.data, self.url), response.headers
            problem = error_of_response(response.status, response.headers, response.data)
            if response.status not in AGAIN or not retries.wait(at_least=retry_after(response.headers)):
                raise problem

    def _request(self, method: str, path: str, document: Any, further: Mapping[str, str]) -> urllib3.BaseHTTPResponse:
        headers, body = {**self._headers, **further}, None
        if document is not None:
            headers["Content-Type"] = "application/json"
            body = json.dumps(document).encode()
        limit = urllib3.Timeout(connect=min(self.timeout, _CONNECT), read=self.timeout)
        return self._pool.request(method, self.url + path, body=body, headers=headers, timeout=limit)

    def stream(
        self, path: str, query: dict[str, str], headers: dict[str, str], quiet: float
    ) -> urllib3.BaseHTTPResponse:
        """A streaming response; `quiet` seconds without data mean that the connection is lost."""
        address = f"{self.url}{path}?{urlencode(query)}" if query else self.url + path
        limit = urllib3.Timeout(connect=min(self.timeout, _CONNECT), read=quiet)
        return self._pool.request(
            "GET", address, headers={**self._headers, **headers}, timeout=limit, preload_content=False
        )

    def retries(self) -> Retries:
        """The attempts of one call, for as long as an outage may last."""
        return _BACKOFF.within(self.patience)

    def unreachable(self, error: Exception) -> UnreachableError:
        """The error for a failed connection."""
        slow = isinstance(error, urllib3.exceptions.TimeoutError)
        reason = "the request timed out" if slow else str(error).split(">: ")[-1].split("): ")[-1][:200]
        return UnreachableError(f"no answer from {self.url}: {reason}")

    def close(self) -> None:
        self._pool.clear()


def retry_after(headers: Mapping[str, str]) -> float:
    """The seconds to wait before a retry."""
    try:
        return max(0.0, float(headers.get("retry-after", "0")))
    except ValueError:
        return 0.0


def _decoded(body: bytes, url: str) -> Any:
    try:
        return json.loads(body)
    except ValueError as error:
        raise ClientError(f"the answer of {url} is not JSON: {body[:80]!r}") from error
