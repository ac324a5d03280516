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
from headrace.processors._enrich.async_requests import FailedRequest, FailureClass, NoMatch, timed_out, unreachable
from headrace.processors._enrich.enricher import Enricher
from headrace.systems.http.async_client import GATEWAY_STATUSES, AsyncHttpClient, NoReplyError, Reply, Request
from headrace.systems.http.client import is_transient
from headrace.systems.http.options import HttpLogin, check_address
from headrace.systems.services import access_denied

_RANGE = re.compile(r"(\d{3})(?:-(\d{3}))?")
_ADVICE = "not an address; write http://host:port or https://host:port"


def server_address(value: str) -> str:
    """An address with scheme and host."""
    if "{" in urlsplit(check_address(value, _ADVICE)).netloc:
        raise ValueError("the server cannot come from a column: columns may stand in the path and the query")
    if "#" in value:
        raise ValueError("the address of a request has no part after '#'")
    return value


def _status_ranges(value: str) -> str:
    statuses_of(value)
    return value


def statuses_of(text: str) -> frozenset[int]:
    """The statuses in a text such as `400,404-499`; a ValueError names what is not a status."""
    statuses: set[int] = set()
    for part in filter(None, (one.strip() for one in text.split(","))):
        match = _RANGE.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not 100 <= first <= last <= 599:
            raise ValueError(f"'{part}' is not a status or a range of them; write e.g. 400,404-499")
        statuses |= set(range(first, last + 1))
    return frozenset(statuses)


Address = Annotated[str, AfterValidator(server_address)]
Statuses = Annotated[str, AfterValidator(_status_ranges)]


class HttpEnricher(HttpLogin, Enricher):
    """A step that queries a service over HTTP."""

    token: SecretStr | None = Field(
        None, description="A bearer token to log in with; take it from a secret.", examples=["${secret:TOKEN}"]
    )
    max_response: int = Field(1_000_000, gt=0, description="The most bytes an answer may have.")
    timeout: Duration = Field(timedelta(seconds=10), description="How long one request may take.")

    @model_validator(mode="after")
    def _one_login(self) -> Self:
        if self.username is not None and self.token is not None:
            raise ValueError("`token` and `username` are two ways to log in; write one of them")
        return self

    def client(self, context: Context, method: str, headers: dict[str, str]) -> AsyncHttpClient:
        return AsyncHttpClient(
            label=self.label,
            method=method,
            headers=headers,
            login=self.login,
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


async def reply_to(client: AsyncHttpClient, request: Request) -> Reply | FailedRequest:
    """The reply to a request, whatever its status, or why there is none."""
    try:
        return await client.send(request)
    except NoReplyError as error:
        match error.kind:
            case "timeout":
                return timed_out(client.timeout)
            case "connection":
                return unreachable(str(error))
        return FailedRequest("response-too-large", str(error))


def document_of(reply: Reply, label: str, excluded: frozenset[int], accepted: frozenset[int] = frozenset()) -> Any:
    """The document of a reply, a NoMatch or a FailedRequest."""
    status = reply.status
    if status in excluded:
        return NoMatch(failure_class(status))
    if 200 <= status < 300 or status in accepted:
        return _decoded(reply)
    if status in (401, 407):
        raise access_denied(label, reply.text)
    return FailedRequest(
        f"http-status-{status}",
        reply.text,
        failure_class(status) or "other",
        is_transient(status),
        status in GATEWAY_STATUSES,
        reply.wait,
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
