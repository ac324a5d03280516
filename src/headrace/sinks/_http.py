"""What sinks that talk HTTP share: options, one client per task, and which failures pass by themselves."""

from __future__ import annotations

import base64
import gzip
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import cached_property, partial
from typing import Annotated, Self
from urllib.parse import urlsplit

import urllib3
from pydantic import AfterValidator, Field, SecretStr, model_validator

from headrace.core.component import Options
from headrace.core.context import Context
from headrace.core.durations import Duration
from headrace.core.errors import ProjectError
from headrace.sinks._patience import Patience
from headrace.systems.addresses import http_address
from headrace.systems.services import not_let_in, not_trusted, service_away
from headrace.systems.tls import ServiceTls, TlsTexts

_LONGEST_ANSWER = 300
_LONGEST_ASKED_WAIT = 30.0


_ADVICE = "not the address of a server; write http://host:port or https://host:port"
Url = Annotated[str, AfterValidator(partial(http_address, advice=_ADVICE))]


class HttpOptions(Options):
    """How a server is talked to over HTTP."""

    username: str | None = Field(None, description="The name to log in with (basic authentication).")
    password: SecretStr | None = Field(
        None, description="The password to log in with; take it from a secret.", examples=["${secret:PASSWORD}"]
    )
    headers: dict[str, SecretStr] = Field(
        default={},
        description="Further HTTP headers of every request.",
        examples=[{"Authorization": "ApiKey ${secret:API_KEY}"}],
    )
    tls: ServiceTls = Field(
        ServiceTls(), description="For https: whom to trust and who we are.", examples=[{"ca": "tls/ca.pem"}]
    )
    timeout: Duration = Field(timedelta(seconds=30), description="How long to wait for one answer.")
    retry_for: Duration = Field(
        timedelta(seconds=30),
        description="How long a request is tried again when the server is away, busy or fails; then the flow is "
        "degraded, and goes on when the server is back.",
    )

    @model_validator(mode="after")
    def _whole_login(self) -> Self:
        if (self.username is None) != (self.password is None):
            raise ValueError("`username` and `password` belong together")
        return self

    def client(self, label: str, url: str, context: Context, *, own_headers: bool = True) -> HttpClient:
        """A client with these options, fit to be sent to the workers."""
        login: dict[str, str] = {}
        if self.username is not None and self.password is not None:
            pair = f"{self.username}:{self.password.get_secret_value()}".encode()
            login["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        if own_headers:
            login |= {name: value.get_secret_value() for name, value in self.headers.items()}
        return HttpClient(
            label=label,
            url=url.rstrip("/"),
            headers=login,
            timeout=self.timeout.total_seconds(),
            retry_for=self.retry_for.total_seconds(),
            tls=self.tls.texts(context),
        )


@dataclass(frozen=True)
class HttpReply:
    """What a server said."""

    status: int
    body: bytes

    @property
    def ok(self) -> bool:
        """Whether it is a success."""
        return 200 <= self.status < 300

    @property
    def text(self) -> str:
        """The beginning of the answer, for messages."""
        return f"HTTP {self.status} {self.body[:_LONGEST_ANSWER].decode(errors='replace').strip()}".strip()


@dataclass(frozen=True)
class HttpClient:
    """Sends requests and tries again. Pickled to the workers before its first request."""

    label: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    timeout: float
    retry_for: float
    tls: TlsTexts = field(repr=False)

    @cached_property
    def _pool(self) -> urllib3.PoolManager:
        timeout = urllib3.Timeout(connect=min(self.timeout, 10.0), read=self.timeout)
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
        """The answer to a request: any but those that tell of trouble that may pass, which are not taken for one."""
        url = path if whole_url else self.url + path
        patience = Patience(self.retry_for)
        while True:
            try:
                response = self._pool.request(
                    method, url, body=body, headers={**self.headers, **(headers or {})}, redirect=False
                )
            except urllib3.exceptions.SSLError as error:
                raise _untrusted(self.label, error) from error
            except urllib3.exceptions.HTTPError as error:
                why, asked = _reason(error), None
            else:
                answer = HttpReply(response.status, response.data)
                if not self.may_pass(answer):
                    return self._allowed(answer)
                why, asked = answer.text, _asked_wait(response.headers.get("Retry-After"))
            if not patience.wait(asked):
                raise service_away(self.label, why)

    def may_pass(self, answer: HttpReply) -> bool:
        """Whether the same request may succeed later."""
        return answer.status in (408, 425, 429) or answer.status >= 500

    def _allowed(self, answer: HttpReply) -> HttpReply:
        if answer.status in (401, 403, 407):
            raise not_let_in(self.label, answer.text)
        if 300 <= answer.status < 400:
            raise ProjectError(
                "sink-refused", f"{self.label} sends us elsewhere: {answer.text}", hint="write the final address"
            )
        return answer


def refusal(label: str, answer: HttpReply) -> ProjectError:
    """The error for an answer that nobody expected."""
    return ProjectError(
        "sink-refused", f"{label} refused what was sent: {answer.text}", hint="look at the address and the server's log"
    )


def zipped(body: bytes) -> tuple[bytes, dict[str, str]]:
    """A body with gzip, and the header that says so."""
    return gzip.compress(body, 1, mtime=0), {"Content-Encoding": "gzip"}


def _asked_wait(header: str | None) -> float | None:
    """What `Retry-After` asks for: seconds or a time, within reason."""
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
    return min(max(seconds, 0.0), _LONGEST_ASKED_WAIT)


def _reason(error: urllib3.exceptions.HTTPError) -> str:
    """What went wrong, without the addresses of Python objects."""
    text = str(error)
    return text.split(": ", 1)[-1] if " object at 0x" in text else text or type(error).__name__


def _untrusted(label: str, error: Exception) -> ProjectError:
    cause = next((one for one in (error, error.__cause__, *error.args) if isinstance(one, ssl.SSLError)), error)
    return not_trusted(label, str(cause))
