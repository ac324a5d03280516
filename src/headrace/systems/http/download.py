"""Downloads of single documents, such as schemas."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Mapping
from urllib.parse import urlsplit

import urllib3

from headrace.core.runtime.backoff import Backoff
from headrace.systems.http.client import HttpReply, failure_text, is_transient

_MOST_REDIRECTS = 3
_MOST_BYTES = 32 * 1024 * 1024
_CHUNK_BYTES = 1 << 16


class DownloadError(Exception):
    """A server did not answer, or not in time; the text is the reason."""


class TooLongError(Exception):
    """An answer is longer than a document may be; the text is the limit."""


def download(
    address: str,
    headers: Mapping[str, str],
    *,
    timeout: float,
    backoff: Backoff,
    retries: int,
    use_proxies: bool = False,
) -> HttpReply:
    """The reply to GET, after retries while the server is unavailable.

    `timeout` is for one attempt. Follows redirections; another server does not get the headers. `use_proxies` respects
    the environment variables for proxies.
    """
    reason = ""
    for attempt in range(retries + 1):
        if attempt:
            time.sleep(backoff.pause(attempt - 1))
        try:
            reply = _get(address, headers, timeout, use_proxies)
        except urllib3.exceptions.HTTPError as error:
            reason = failure_text(error)
            continue
        if not is_transient(reply.status):
            return reply
        reason = f"HTTP {reply.status}"
    raise DownloadError(reason)


def _get(address: str, headers: Mapping[str, str], timeout: float, use_proxies: bool) -> HttpReply:
    deadline = time.monotonic() + timeout
    redirects = urllib3.Retry(
        total=_MOST_REDIRECTS,
        connect=0,
        read=0,
        other=0,
        status=0,
        respect_retry_after_header=False,
        remove_headers_on_redirect=list(headers),
    )
    with _pool(address, use_proxies) as pool:
        response = pool.request(
            "GET",
            address,
            headers=dict(headers),
            timeout=urllib3.Timeout(total=timeout),
            retries=redirects,
            preload_content=False,
        )
        return HttpReply(response.status, _body(response, deadline), response.headers)


def _pool(address: str, use_proxies: bool) -> urllib3.PoolManager:
    parts = urlsplit(address)
    proxy = urllib.request.getproxies().get(parts.scheme) if use_proxies else None
    if proxy is None or urllib.request.proxy_bypass(str(parts.hostname)):
        return urllib3.PoolManager()
    return urllib3.ProxyManager(proxy if "://" in proxy else f"http://{proxy}")


def _body(response: urllib3.BaseHTTPResponse, deadline: float) -> bytes:
    body = b""
    for chunk in response.stream(_CHUNK_BYTES, decode_content=True):
        body += chunk
        if len(body) > _MOST_BYTES:
            raise TooLongError(f"{_MOST_BYTES // 1024 // 1024} MiB")
        if time.monotonic() > deadline:
            raise DownloadError("the answer took too long")
    return body
