"""Options of a connection to an HTTP server."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, model_validator

from headrace.core.component import Options
from headrace.core.context import Context
from headrace.core.options.durations import Duration
from headrace.systems.http.client import HttpClient, basic_authentication
from headrace.systems.tls import ServiceTls


def check_address(value: str, advice: str, login: str = "write `username` and `password`") -> str:
    """Accept an address of HTTP without names and passwords; `advice` says how an address is written."""
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"'{value}' is {advice}")
    if "@" in parts.netloc:
        raise ValueError(f"names and passwords do not belong in the address; {login}")
    return value


_ADVICE = "not the address of a server; write http://host:port or https://host:port"
HttpUrl = Annotated[str, AfterValidator(partial(check_address, advice=_ADVICE))]


class HttpLogin(Options):
    """How a kind logs in to an HTTP server."""

    username: str | None = Field(None, description="The name to log in with (basic authentication).")
    password: SecretStr | None = Field(
        None, description="The password to log in with; take it from a secret.", examples=["${secret:PASSWORD}"]
    )
    tls: ServiceTls = Field(
        ServiceTls(), description="For https: whom to trust and who we are.", examples=[{"ca": "tls/ca.pem"}]
    )

    @model_validator(mode="after")
    def _check_login(self) -> Self:
        if (self.username is None) != (self.password is None):
            raise ValueError("`username` and `password` belong together")
        return self

    @property
    def login(self) -> tuple[str, str] | None:
        if self.username is None or self.password is None:
            return None
        return self.username, self.password.get_secret_value()


class HttpOptions(HttpLogin):
    """How a kind sends requests to an HTTP server."""

    headers: dict[str, SecretStr] = Field(
        default={},
        description="Further HTTP headers of every request.",
        examples=[{"Authorization": "ApiKey ${secret:API_KEY}"}],
    )
    timeout: Duration = Field(timedelta(seconds=30), description="How long to wait for one answer.")
    retry_for: Duration = Field(
        timedelta(seconds=30),
        description="How long a request is retried while the server is unavailable, busy or fails; then the flow is "
        "degraded, and resumes when the server is back.",
    )

    def client(self, label: str, url: str, context: Context, *, own_headers: bool = True) -> HttpClient:
        """A client with these options, fit to be sent to the workers."""
        headers = basic_authentication(self.login)
        if own_headers:
            headers |= {name: value.get_secret_value() for name, value in self.headers.items()}
        return HttpClient(
            label=label,
            url=url.rstrip("/"),
            headers=headers,
            timeout=self.timeout.total_seconds(),
            retry_for=self.retry_for.total_seconds(),
            tls=self.tls.texts(context),
        )
