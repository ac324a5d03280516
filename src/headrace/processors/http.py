"""`type: http`: asks an HTTP service about each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self
from urllib.parse import urljoin, urlsplit

from pydantic import Field, SecretStr, model_validator

from headrace.core.context import Context
from headrace.core.encoding.json_values import UnfitValueError
from headrace.processors._enrich import templates
from headrace.processors._enrich.async_requests import PROBE_SECONDS, FailedRequest, ServiceClient
from headrace.processors._enrich.http_options import (
    Address,
    HttpEnricher,
    Statuses,
    document_of,
    origin,
    reply_to,
    statuses_of,
)
from headrace.systems.http.async_client import AsyncHttpClient, Request

_MOST_REDIRECTS = 5


class Http(HttpEnricher):
    """Adds columns with what an HTTP service answers about each row.

    Each Arrow batch asks once per distinct key, `capacity` requests at a time and per task; a row of which a column in
    the request is NULL is not asked about and gets nulls. A 2xx answer is success, and so is one of `accept`; `exclude`
    names statuses that mean "there is nothing" and give nulls. 408, 425, 429, 5xx, timeouts and broken connections are
    tried again `retries` times; if the service gives no sign of life meanwhile, until `give_up`, while the flow is
    degraded. 401 and 407 fail the flow. Redirections are errors unless `redirects` is set, and never lead to another
    server.
    Delivery: no row is lost or doubled; a batch that runs again after a crash asks again, and may be told something
    else. Order: that of the rows. Scale: measured 2,000 rows/s and more on 2 cores at 20 ms latency; the answers of one
    Arrow batch are in memory at once.
    """

    type: Literal["http"] = "http"
    url: Address = Field(
        description="What is asked. {column} stands for a column's value in the path or the query, {{ for a brace.",
        examples=["https://customers.example.com/v1/customers/{customer_id}"],
    )
    method: Literal["GET", "POST", "PUT"] = Field("GET", description="Method of the requests.")
    headers: dict[str, SecretStr] = Field(
        default={},
        description="Headers of the requests. {column} stands for a column's value, {{ for a brace.",
        examples=[{"X-Tenant": "{tenant}"}],
    )
    body: str | None = Field(
        None,
        description="JSON to send. {column} stands for a column's value, which becomes JSON: a text gets its quotes, "
        "unless the place is between quotes already.",
        examples=['{"ids": [{customer_id}], "note": "row of {country}"}'],
    )
    exclude: Statuses = Field(
        "", description="Statuses that are no failures: the columns are null then.", examples=["400,404-499"]
    )
    accept: Statuses = Field(
        "",
        description="Statuses besides 2xx whose answers are taken as such, for services that explain in them.",
        examples=["400,404"],
    )
    redirects: bool = Field(False, description="Whether redirections within the same server are followed.")
    health: str | None = Field(
        None,
        description="Path to look at (GET) when it is to be known whether the service is there; an answer below 500 "
        "says so. Left out: any answer to HEAD / does, but for 502, 503 and 504.",
        examples=["/health"],
    )

    @model_validator(mode="after")
    def _templates_are_right(self) -> Self:
        _ = self._path, self._query
        both = statuses_of(self.exclude) & statuses_of(self.accept)
        if both:
            raise ValueError(f"{min(both)} is in `exclude` and in `accept`")
        for name, value in self.headers.items():
            try:
                self._header(name, value)
            except ValueError as error:
                raise ValueError(f"header '{name}': {error}") from None
        if self.body is not None:
            if self.method == "GET":
                raise ValueError("a GET has no `body`; write `method: POST`")
            templates.json_parts(self.body)
        return self

    @property
    def label(self) -> str:
        """The server; what follows in the address may be secret."""
        return f"http {self.method} {urlsplit(self.url).netloc}"

    def asked(self) -> Sequence[str]:
        """The columns of all templates."""
        headers = [self._header(name, value) for name, value in self.headers.items()]
        return templates.columns_of(self._path, self._query, *headers, self._body)

    def service(self, context: Context) -> HttpService:
        """With all templates taken apart."""
        asked = self.asked()
        headers = {"Accept": "application/json"}
        if self.body is not None:
            headers["Content-Type"] = "application/json"
        given = {name.lower() for name in self.headers}
        return HttpService(
            label=self.label,
            client=self.client(context, self.method, {n: v for n, v in headers.items() if n.lower() not in given}),
            origin=origin(self.url),
            path=templates.Text.of(self._path, asked),
            query=templates.Text.of(self._query, asked),
            headers=tuple(templates.Text.of(self._header(n, v), asked) for n, v in self.headers.items()),
            body=templates.Text.of(self._body, asked) if self.body is not None else None,
            excluded=statuses_of(self.exclude),
            accepted=statuses_of(self.accept),
            redirects=_MOST_REDIRECTS if self.redirects else 0,
            health=self.health,
        )

    @property
    def _path(self) -> templates.Parts:
        return templates.url_parts(self._split()[0] or "/", templates.in_path)

    @property
    def _query(self) -> templates.Parts:
        _, mark, query = self._split()
        return templates.url_parts(mark + query, templates.in_query)

    def _split(self) -> tuple[str, str, str]:
        """Path, question mark and query."""
        return self.url[len(origin(self.url)) :].partition("?")

    @property
    def _body(self) -> templates.Parts:
        return () if self.body is None else templates.json_parts(self.body)

    @staticmethod
    def _header(name: str, value: SecretStr) -> templates.Parts:
        templates.in_header(value.get_secret_value())
        if not name or set(name) & set(": \r\n\t"):
            raise ValueError("not the name of a header")
        return (f"{name}: ", *templates.parts_of(value.get_secret_value(), templates.in_header))


@dataclass
class HttpService(ServiceClient):
    """Asks one URL after the other."""

    keeps_time: ClassVar[bool] = True

    label: str
    client: AsyncHttpClient
    origin: str
    path: templates.Text = field(repr=False)
    query: templates.Text = field(repr=False)
    headers: tuple[templates.Text, ...] = field(repr=False)
    body: templates.Text | None = field(repr=False)
    excluded: frozenset[int]
    accepted: frozenset[int]
    redirects: int
    health: str | None

    def question(self, values: Sequence[Any]) -> Request:
        """The request."""
        path = self.path.filled(values)
        if "/./" in f"{path}/" or "/../" in f"{path}/":
            raise UnfitValueError("'.' or '..' as a part of the path makes another path")
        return Request(
            self.origin + path + self.query.filled(values),
            tuple([header.filled(values) for header in self.headers]),
            None if self.body is None else self.body.filled(values).encode(),
        )

    async def ask(self, questions: Sequence[Any]) -> list[Any]:
        """One request for each."""
        return [await self._ask(question) for question in questions]

    async def _ask(self, request: Request) -> Any:
        reply = await reply_to(self.client, request)
        for _ in range(self.redirects):
            if isinstance(reply, FailedRequest) or reply.location is None:
                break
            there = urljoin(request.url, reply.location)
            if origin(there) != self.origin:
                return FailedRequest("redirected-elsewhere", f"HTTP {reply.status} to another server")
            request = Request(there, request.headers, request.body)
            reply = await reply_to(self.client, request)
        return (
            reply if isinstance(reply, FailedRequest) else document_of(reply, self.label, self.excluded, self.accepted)
        )

    async def probe(self) -> None:
        """HEAD of the root, or GET of the path for it."""
        path = self.health or "/"
        url = self.origin + (path if path.startswith("/") else f"/{path}")
        await self.client.probe(url, head=self.health is None, timeout=PROBE_SECONDS)

    async def close(self) -> None:
        """Close the connections."""
        await self.client.close()
