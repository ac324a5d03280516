"""What steps that query over HTTP share: options, and the meaning of statuses."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

import msgspec
from pydantic import AfterValidator, Field, SecretStr, model_validator

from headrace.core.context import Context
from headrace.core.durations import Duration
from headrace.processors._enrich.async_requests import FailedRequest, FailureClass, NoMatch
from headrace.processors._enrich.curl import CurlClient, Reply
from headrace.processors._enrich.enricher import Enricher
from headrace.systems.services import not_let_in
from headrace.systems.tls import ServiceTls

_RANGE = re.compile(r"(\d{3})(?:-(\d{3}))?")
_PASSING = (408, 425, 429)
_NOBODY_BEHIND = (502, 503, 504)


def server_address(value: str) -> str:
    """An address with scheme and host."""
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError(f"'{value}' is not an address; write http://host:port or https://host:port")
    if "@" in parts.netloc:
        raise ValueError("names and passwords do not belong in the address; write `username` and `password`")
    if "{" in parts.netloc:
        raise ValueError("the server cannot come from a column: columns may stand in the path and the query")
    if "#" in value:
        raise ValueError("the address of a request has no part after '#'")
    return value


def _status_ranges(value: str) -> str:
    statuses_of(value)
    return value


def statuses_of(text: str) -> frozenset[int]:
    """The statuses in a text such as `400,404-499`; a ValueError names what is not a status."""
    found: set[int] = set()
    for part in filter(None, (one.strip() for one in text.split(","))):
        match = _RANGE.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not 100 <= first <= last <= 599:
            raise ValueError(f"'{part}' is not a status or a range of them; write e.g. 400,404-499")
        found |= set(range(first, last + 1))
    return frozenset(found)


Address = Annotated[str, AfterValidator(server_address)]
Statuses = Annotated[str, AfterValidator(_status_ranges)]


class HttpEnricher(Enricher):
    """A step that queries a service over HTTP."""

    username: str | None = Field(None, description="The name to log in with (basic authentication).")
    password: SecretStr | None = Field(
        None, description="The password to log in with; take it from a secret.", examples=["${secret:PASSWORD}"]
    )
    token: SecretStr | None = Field(
        None, description="A bearer token to log in with; take it from a secret.", examples=["${secret:TOKEN}"]
    )
    tls: ServiceTls = Field(
        ServiceTls(), description="For https: whom to trust and who we are.", examples=[{"ca": "tls/ca.pem"}]
    )
    max_response: int = Field(1_000_000, gt=0, description="The most bytes an answer may have.")
    timeout: Duration = Field(timedelta(seconds=10), description="How long one request may take.")

    @model_validator(mode="after")
    def _one_login(self) -> Self:
        if (self.username is None) != (self.password is None):
            raise ValueError("`username` and `password` belong together")
        if self.username is not None and self.token is not None:
            raise ValueError("`token` and `username` are two ways to log in; write one of them")
        return self

    def client(self, context: Context, method: str, headers: dict[str, str]) -> CurlClient:
        login = None
        if self.username is not None and self.password is not None:
            login = (self.username, self.password.get_secret_value())
        return CurlClient(
            label=self.label,
            method=method,
            headers=headers,
            login=login,
            token=self.token.get_secret_value() if self.token else None,
            tls=self.tls.texts(context),
            timeout=self.timeout.total_seconds(),
            connect_timeout=self.connect_timeout.total_seconds(),
            max_response=self.max_response,
        )


def origin(url: str) -> str:
    """Scheme and host of an address."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def document_of(reply: Reply, label: str, excluded: frozenset[int], accepted: frozenset[int] = frozenset()) -> Any:
    """The document of a reply, a NoMatch or a FailedRequest."""
    status = reply.status
    if status in excluded:
        return NoMatch(failure_class(status))
    if 200 <= status < 300 or status in accepted:
        return _decoded(reply)
    if status in (401, 407):
        raise not_let_in(label, reply.text)
    passes = status in _PASSING or status >= 500
    away = status in _NOBODY_BEHIND
    return FailedRequest(
        f"http-status-{status}", reply.text, failure_class(status) or "other", passes, away, reply.wait
    )


def _decoded(reply: Reply) -> Any:
    if not reply.body.strip():
        return NoMatch(None)
    try:
        return msgspec.json.decode(reply.body)
    except msgspec.DecodeError as error:
        return FailedRequest("bad-answer", f"the answer is not JSON: {error}")


def failure_class(status: int) -> FailureClass | None:
    """The class under which a status is counted; None for a success."""
    if status == 404:
        return "404"
    if 400 <= status < 500:
        return "4xx"
    if status >= 500:
        return "5xx"
    return None if 200 <= status < 300 else "other"
