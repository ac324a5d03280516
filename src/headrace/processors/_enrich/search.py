"""Queries OpenSearch and Elasticsearch, whose HTTP interfaces are the same here."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self
from urllib.parse import urlsplit

import msgspec
from pydantic import Field, model_validator

from headrace.core.context import Context
from headrace.core.encoding.json_values import UnfitValueError
from headrace.processors._enrich import templates
from headrace.processors._enrich.async_requests import PROBE_SECONDS, FailedRequest, NoMatch, ServiceClient
from headrace.processors._enrich.http_options import Address, HttpEnricher, document_of, reply_to
from headrace.systems.http.async_client import AsyncHttpClient, Request

_NO_STATUS: frozenset[int] = frozenset()
_PASSING = frozenset({"es_rejected_execution_exception", "no_shard_available_action_exception"})


# characters that no name of an index has, or that would mean several indices
_NO_INDEX = re.compile(r'[\\/*?"<>|\s,#:]|^[-_+.]|^$')


def _in_index(value: Any) -> str:
    text = templates.plain(value)
    if _NO_INDEX.search(text):
        raise UnfitValueError(f"{text[:80]!r} is not a part of an index's name")
    return text


class SearchEnricher(HttpEnricher):
    """Documents by id, or the hits of a search."""

    url: Address = Field(description="Address of the cluster.", examples=["https://127.0.0.1:9200"])
    index: str = Field(
        min_length=1,
        description="Index to look in. {column} stands for a column's value, {{ for a brace.",
        examples=["customers", "customers-{country}"],
    )
    id: str | None = Field(
        None,
        description="Id of the document to get. Paths begin at the document's own fields (its `_source`).",
        examples=["{customer_id}"],
    )
    search: str | None = Field(
        None,
        description="JSON body of a search, instead of `id`. {column} stands for a column's value, which becomes JSON. "
        "Paths begin at the whole answer.",
        examples=['{"size": 1, "query": {"term": {"email": {email}}}}'],
    )
    batch_size: int = Field(50, gt=0, le=1000, description="Documents per request, when they are got by id.")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.id is None) == (self.search is None):
            raise ValueError("write `id` to get documents, or `search` to search for them")
        _ = self._index, self._key
        return self

    @property
    def label(self) -> str:
        return f"{self.kind()} {self.index} at {urlsplit(self.url).netloc}"

    def request_columns(self) -> Sequence[str]:
        return templates.columns_of(self._index, self._key)

    def service(self, context: Context) -> ServiceClient:
        request_columns, url = self.request_columns(), self.url.rstrip("/")
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        client = self.client(context, "POST", headers)
        index, key = templates.Text.of(self._index, request_columns), templates.Text.of(self._key, request_columns)
        if self.search is not None:
            return SearchService(self.label, client, url, index, key)
        return DocumentService(self.label, client, url, index, key, together=self.batch_size)

    @property
    def _index(self) -> templates.Parts:
        return (
            templates.url_parts(self.index, _in_index)
            if self.search is not None
            else templates.parts_of(self.index, _in_index)
        )

    @property
    def _key(self) -> templates.Parts:
        if self.search is not None:
            return templates.json_parts(self.search)
        return templates.parts_of(self.id or "", templates.plain)


@dataclass
class SearchService(ServiceClient):
    """Sends one search per request."""

    own_timeout: ClassVar[bool] = True

    label: str
    client: AsyncHttpClient
    url: str
    index: templates.Text
    key: templates.Text
    together: int = 1

    def request_for(self, values: Sequence[Any]) -> Request:
        return Request(f"{self.url}/{self.index.filled(values)}/_search", (), self.key.filled(values).encode())

    async def call(self, requests: Sequence[Any]) -> list[Any]:
        """The hits of each search; an index that does not exist has none."""
        return [await self._call(request) for request in requests]

    async def _call(self, request: Request) -> Any:
        reply = await reply_to(self.client, request)
        return reply if isinstance(reply, FailedRequest) else document_of(reply, self.label, frozenset({404}))

    async def probe(self) -> None:
        await self.client.probe(f"{self.url}/", head=False, timeout=PROBE_SECONDS)

    async def close(self) -> None:
        await self.client.close()


@dataclass
class DocumentService(SearchService):
    """Gets many documents by one request."""

    together: int = 50

    def request_for(self, values: Sequence[Any]) -> Any:
        return {"_index": self.index.filled(values), "_id": self.key.filled(values)}

    async def call(self, requests: Sequence[Any]) -> list[Any]:
        request = Request(f"{self.url}/_mget", (), json.dumps({"docs": list(requests)}).encode())
        reply = await reply_to(self.client, request)
        answer = reply if isinstance(reply, FailedRequest) else document_of(reply, self.label, _NO_STATUS)
        if isinstance(answer, FailedRequest) and answer.reason == "response-too-large" and len(requests) > 1:
            return [(await self.call([request]))[0] for request in requests]
        if isinstance(answer, FailedRequest | NoMatch):
            return [answer] * len(requests)
        return self._documents(answer, len(requests))

    @staticmethod
    def _documents(found: Any, number: int) -> list[Any]:
        documents = found.get("docs") if isinstance(found, dict) else None
        if not isinstance(documents, list) or len(documents) != number:
            return [FailedRequest("bad-answer", "not the answer of a cluster to _mget")] * number
        return [_document(document) for document in documents]


def _document(document: dict[str, Any]) -> Any:
    error = document.get("error")
    if error is not None:
        kind = str(error.get("type") if isinstance(error, dict) else error)
        if kind == "index_not_found_exception":
            return NoMatch()
        detail = msgspec.json.encode(error).decode()[:200]
        passes = kind in _PASSING
        return FailedRequest(f"search-{kind.replace('_', '-')}", detail, "5xx" if passes else "4xx", passes)
    return document.get("_source") or {} if document.get("found") else NoMatch()
