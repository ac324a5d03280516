"""The OpenAPI 3.1 document of the endpoints that a caller may see, made from their schemas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headrace import __version__
from headrace.core.endpoints import Endpoint
from headrace.core.tables import TableShape
from headrace.project.serving import Limits
from headrace.serve.access.schemas import (
    changes_schema,
    column_schema,
    filter_schema,
    parameter_names,
    query_schema,
    row_schema,
    value_schema,
)
from headrace.sources.http import HttpSource

Document = dict[str, Any]

_PROBLEM: Document = {
    "type": "object",
    "description": "What is wrong, and what to do.",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string", "description": "The same for the same mistake, for programs."},
        "detail": {"type": "string"},
        "hint": {"type": ["string", "null"]},
    },
    "required": ["type", "title", "status", "code", "detail", "hint"],
}
_SECURITY: Document = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key or a signed token."},
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}
_PROBLEMS = {
    "400": "The request is malformed.",
    "401": "No token, or one that does not hold.",
    "403": "The token does not allow this.",
    "404": "There is no such endpoint or row.",
    "406": "The answer is JSON; the request does not accept that.",
    "408": "The body did not arrive in time.",
    "413": "The body, or what is asked for, is too large.",
    "415": "The body is not JSON.",
    "422": "Rows of this endpoint cannot be asked for that way.",
    "429": "Too many requests; Retry-After says when to come back.",
    "503": "The endpoint cannot answer yet; Retry-After says when to ask again.",
}
_AGAIN = "Sent again with the same, a request changes nothing."
_HEADERS: Document = {
    "version": {"description": "The endpoint's version that answered.", "schema": {"type": "string"}},
    "etag": {"description": "The state of the row, for If-None-Match.", "schema": {"type": "string"}},
    "next": {"description": "The cursor of the next page, if there is one.", "schema": {"type": "string"}},
    "link": {"description": "The address of the next page, with rel=next.", "schema": {"type": "string"}},
}


def document(
    endpoints: Iterable[Endpoint],
    project: str,
    limits: Limits,
    *,
    tables: Mapping[str, TableShape] | None = None,
    streams: Mapping[str, HttpSource] | None = None,
    auth: bool,
) -> Document:
    """The whole document."""
    shown = list(endpoints)
    found: Document = {
        "openapi": "3.1.0",
        "info": {
            "title": project,
            "version": ", ".join(f"{one.name} v{one.version}" for one in shown) or "no endpoints",
            "description": f"Endpoints of the project {project}, served by Headrace {__version__}.",
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": one.name, "description": one.description} for one in shown],
        "paths": {},
        "components": {
            "schemas": {"problem": _PROBLEM},
            "responses": {status: _problem(text) for status, text in _PROBLEMS.items()},
            "headers": _HEADERS,
        },
    }
    for endpoint in shown:
        found["paths"].update(_paths(endpoint, limits))
        found["components"]["schemas"].update(_schemas(endpoint, limits))
    for name, shape in (tables or {}).items():
        found["paths"][f"/tables/{name}"] = {"post": _push(name)}
        found["components"]["schemas"][f"tables_{name}"] = changes_schema(shape)
    for name, source in (streams or {}).items():
        found["paths"][source.path] = {"post": _post(name, source)}
    if auth:
        found["components"]["securitySchemes"] = _SECURITY
        found["security"] = [{"bearer": []}, {"key": []}]
    return found


def _problem(text: str) -> Document:
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/problem"}}}
    return {"description": text, "content": content}


def _schemas(endpoint: Endpoint, limits: Limits) -> Document:
    name = endpoint.name
    return {
        name: row_schema(endpoint),
        f"{name}_filter": filter_schema(endpoint, f"{name}_filter"),
        f"{name}_query": query_schema(endpoint, f"{name}_filter", limits.page),
        f"{name}_count": query_schema(endpoint, f"{name}_filter", None),
    }


def _paths(endpoint: Endpoint, limits: Limits) -> Document:
    path = f"/{endpoint.name}"
    found = {
        path: {"get": _list(endpoint, limits)},
        f"{path}/query": {"post": _query(endpoint)},
        f"{path}/count": {"post": _count(endpoint)},
        f"{path}/events": {"get": _events(endpoint)},
        f"{path}/oapi": {"get": _operation(endpoint, "describe", "This document, for this endpoint alone", _any())},
    }
    if endpoint.key:
        template = ",".join(f"{{{name}}}" for name in parameter_names(endpoint))
        found[f"{path}/{template}"] = {"get": _get(endpoint)}
    return found


def _operation(endpoint: Endpoint, verb: str, summary: str, answer: Document, *problems: str) -> Document:
    refused = {
        status: {"$ref": f"#/components/responses/{status}"}
        for status in ("400", "401", "403", "404", "406", "429", "503", *problems)
    }
    return {
        "operationId": f"{verb}_{endpoint.name}",
        "tags": [endpoint.name],
        "summary": summary,
        "responses": {"200": answer, **dict(sorted(refused.items()))},
    }


def _answer(text: str, schema: Document, *headers: str) -> Document:
    names = {"etag": "ETag", "next": "X-Next-Cursor", "link": "Link", "version": "X-Headrace-Version"}
    return {
        "description": text,
        "headers": {names[one]: {"$ref": f"#/components/headers/{one}"} for one in ("version", *headers)},
        "content": {"application/json": {"schema": schema}},
    }


def _any() -> Document:
    return _answer("An OpenAPI document.", {"type": "object"})


def _rows(endpoint: Endpoint) -> Document:
    schema = {"type": "array", "items": {"$ref": f"#/components/schemas/{endpoint.name}"}}
    return _answer("Rows.", schema, "next", "link")


def _get(endpoint: Endpoint) -> Document:
    answer = _answer("The row.", {"$ref": f"#/components/schemas/{endpoint.name}"}, "etag")
    found = _operation(endpoint, "get", "One row by its key", answer, "422")
    found["responses"]["304"] = {"description": "The row is as If-None-Match says."}
    found["parameters"] = [
        {
            "name": parameter,
            "in": "path",
            "required": True,
            "description": f"The key's column `{name}`.",
            "schema": column_schema(endpoint.columns.field(name), nullable=False),
        }
        for parameter, name in zip(parameter_names(endpoint), endpoint.key, strict=True)
    ]
    return found


def _list(endpoint: Endpoint, limits: Limits) -> Document:
    found = _operation(endpoint, "list", "Rows, in the order of the key", _rows(endpoint), "422")
    most = {"type": "integer", "minimum": 0, "maximum": limits.page, "default": min(50, limits.page)}
    reference = {"schema": {"$ref": f"#/components/schemas/{endpoint.name}_filter"}}
    found["parameters"] = [
        _parameter("$limit", "How many rows at most.", most),
        _parameter("$skip", "How many rows to leave out first.", {"type": "integer", "minimum": 0}),
        _parameter("$after", "The cursor that came with the page before.", {"type": "string"}),
        _parameter("$order_by", "Columns to sort by; `-` turns one round: `-year,title`.", {"type": "string"}),
        {**_parameter("$filter", "As in a query."), "content": {"application/json": reference}},
        *(_parameter(field.name, "Rows with this value.", value_schema(field.type)) for field in _plain(endpoint)),
    ]
    return found


def _plain(endpoint: Endpoint) -> list[Any]:
    """Columns that can be asked for by `column=value`."""
    return [
        field for field in endpoint.columns if value_schema(field.type).get("type") in ("boolean", "integer", "string")
    ]


def _parameter(name: str, text: str, schema: Document | None = None) -> Document:
    found = {"name": name, "in": "query", "required": False, "description": text}
    return found if schema is None else {**found, "schema": schema}


def _query(endpoint: Endpoint) -> Document:
    found = _operation(endpoint, "query", "Rows that meet a filter", _rows(endpoint), "408", "413", "415", "422")
    return {**found, "requestBody": _body(f"{endpoint.name}_query")}


def _count(endpoint: Endpoint) -> Document:
    answer = _answer("How many rows meet it.", {"type": "integer", "minimum": 0})
    found = _operation(endpoint, "count", "How many rows meet a filter", answer, "408", "413", "415", "422")
    return {**found, "requestBody": _body(f"{endpoint.name}_count")}


def _events(endpoint: Endpoint) -> Document:
    answer: Document = {"description": "Changes as they come.", "content": {"text/event-stream": {}}}
    found = _operation(endpoint, "watch", "Live changes (SSE, or a WebSocket on the same address)", answer)
    reference = {"schema": {"$ref": f"#/components/schemas/{endpoint.name}_filter"}}
    found["parameters"] = [
        {**_parameter("$filter", "Only changes of rows that meet it."), "content": {"application/json": reference}},
        _parameter("types", "Of insert, update, delete, with commas.", {"type": "string"}),
        _parameter("snapshot", "Whether to begin with the rows as they are.", {"type": "boolean"}),
        _parameter("after", "Go on after this event.", {"type": "string"}),
    ]
    return found


def _push(table: str) -> Document:
    """Changes of a table: neither an endpoint's version nor a row comes back."""
    refused = ("400", "401", "403", "404", "406", "408", "413", "415", "422", "429", "503")
    counted = {"type": "integer", "minimum": 1}
    answer = {"type": "object", "properties": {"accepted": counted, "position": counted}}
    said = {
        "description": "They are durable, and will be in the table soon.",
        "content": {"application/json": {"schema": {**answer, "required": ["accepted", "position"]}}},
    }
    return {
        "operationId": f"push_{table}",
        "tags": [f"tables/{table}"],
        "summary": f"Insert, update and delete rows of the table {table}, all or nothing",
        "parameters": [_header("Idempotency-Key", _AGAIN)],
        "requestBody": {**_body(f"tables_{table}"), "required": True},
        "responses": {"200": said, **{one: {"$ref": f"#/components/responses/{one}"} for one in refused}},
    }


def _post(stream: str, source: HttpSource) -> Document:
    """A record of a stream, in the form that the project wants."""
    refused = ("400", "401", "403", "408", "413", "415", "422", "429", "503")
    taken = {"description": "The record is durable.", "content": {"application/json": {"schema": {"type": "object"}}}}
    named = [one.header for one in source.fields.values() if one.header is not None]
    return {
        "operationId": f"post_{stream}",
        "tags": [stream],
        "summary": f"Add a record to the stream {stream}; its body may be compressed with gzip or deflate",
        "parameters": [
            _header("Idempotency-Key", _AGAIN),
            *(_header(name, "Becomes part of the record.") for name in dict.fromkeys(named)),
        ],
        "requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}},
        "responses": {"200": taken, **{one: _refused(source, one) for one in refused}},
    }


def _refused(source: HttpSource, status: str) -> Document:
    if source.refusal is None:
        return {"$ref": f"#/components/responses/{status}"}
    return {"description": _PROBLEMS[status], "content": {"application/json": {"schema": {"type": "object"}}}}


def _header(name: str, text: str) -> Document:
    return {**_parameter(name, text, {"type": "string"}), "in": "header"}


def _body(name: str) -> Document:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
    return {"required": False, "content": content}
