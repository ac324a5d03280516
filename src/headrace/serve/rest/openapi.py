"""The OpenAPI 3.1 document of the endpoints that a caller may see, derived from their schemas."""

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
    "description": "The error, and how to fix it.",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string", "description": "A stable code for programs."},
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
    "401": "No token, or one that is not valid.",
    "403": "The token does not allow this.",
    "404": "The endpoint or row does not exist.",
    "406": "The response is JSON, which the request does not accept.",
    "408": "The body did not arrive in time.",
    "413": "The body or the result is too large.",
    "415": "The body is not JSON.",
    "422": "The endpoint does not support this request.",
    "429": "Too many requests; Retry-After says when to retry.",
    "503": "The endpoint cannot answer yet; Retry-After says when to retry.",
}
_AGAIN = "A repeated request with the same key changes nothing."
_HEADERS: Document = {
    "version": {"description": "The version of the endpoint that answered.", "schema": {"type": "string"}},
    "etag": {"description": "The state of the row, for If-None-Match.", "schema": {"type": "string"}},
    "next": {"description": "The cursor of the next page, if there is one.", "schema": {"type": "string"}},
    "link": {"description": "The URL of the next page, with rel=next.", "schema": {"type": "string"}},
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
    visible = list(endpoints)
    openapi: Document = {
        "openapi": "3.1.0",
        "info": {
            "title": project,
            "version": ", ".join(f"{endpoint.name} v{endpoint.version}" for endpoint in visible) or "no endpoints",
            "description": f"Endpoints of the project {project}, served by Headrace {__version__}.",
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": endpoint.name, "description": endpoint.description} for endpoint in visible],
        "paths": {},
        "components": {
            "schemas": {"problem": _PROBLEM},
            "responses": {status: _problem(text) for status, text in _PROBLEMS.items()},
            "headers": _HEADERS,
        },
    }
    for endpoint in visible:
        openapi["paths"].update(_paths(endpoint, limits))
        openapi["components"]["schemas"].update(_schemas(endpoint, limits))
    for name, shape in (tables or {}).items():
        openapi["paths"][f"/tables/{name}"] = {"post": _push(name)}
        openapi["components"]["schemas"][f"tables_{name}"] = changes_schema(shape)
    for name, source in (streams or {}).items():
        openapi["paths"][source.path] = {"post": _post(name, source)}
    if auth:
        openapi["components"]["securitySchemes"] = _SECURITY
        openapi["security"] = [{"bearer": []}, {"key": []}]
    return openapi


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
    paths = {
        path: {"get": _list(endpoint, limits)},
        f"{path}/query": {"post": _query(endpoint)},
        f"{path}/count": {"post": _count(endpoint)},
        f"{path}/events": {"get": _events(endpoint)},
        f"{path}/oapi": {"get": _operation(endpoint, "describe", "This document, for this endpoint only", _any())},
    }
    if endpoint.key:
        template = ",".join(f"{{{name}}}" for name in parameter_names(endpoint))
        paths[f"{path}/{template}"] = {"get": _get(endpoint)}
    return paths


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
        "headers": {names[name]: {"$ref": f"#/components/headers/{name}"} for name in ("version", *headers)},
        "content": {"application/json": {"schema": schema}},
    }


def _any() -> Document:
    return _answer("An OpenAPI document.", {"type": "object"})


def _rows(endpoint: Endpoint) -> Document:
    schema = {"type": "array", "items": {"$ref": f"#/components/schemas/{endpoint.name}"}}
    return _answer("Rows.", schema, "next", "link")


def _get(endpoint: Endpoint) -> Document:
    answer = _answer("The row.", {"$ref": f"#/components/schemas/{endpoint.name}"}, "etag")
    operation = _operation(endpoint, "get", "One row by its key", answer, "422")
    operation["responses"]["304"] = {"description": "The row has the state of If-None-Match."}
    operation["parameters"] = [
        {
            "name": parameter,
            "in": "path",
            "required": True,
            "description": f"The key column `{name}`.",
            "schema": column_schema(endpoint.columns.field(name), nullable=False),
        }
        for parameter, name in zip(parameter_names(endpoint), endpoint.key, strict=True)
    ]
    return operation


def _list(endpoint: Endpoint, limits: Limits) -> Document:
    operation = _operation(endpoint, "list", "Rows, in the order of the key", _rows(endpoint), "422")
    most = {"type": "integer", "minimum": 0, "maximum": limits.page, "default": min(50, limits.page)}
    reference = {"schema": {"$ref": f"#/components/schemas/{endpoint.name}_filter"}}
    operation["parameters"] = [
        _parameter("$limit", "The maximum number of rows.", most),
        _parameter("$skip", "The number of rows to skip.", {"type": "integer", "minimum": 0}),
        _parameter("$after", "The cursor of the previous page.", {"type": "string"}),
        _parameter("$order_by", "Columns to sort by; `-` reverses the order: `-year,title`.", {"type": "string"}),
        {**_parameter("$filter", "A filter, as in a query."), "content": {"application/json": reference}},
        *(_parameter(field.name, "Rows with this value.", value_schema(field.type)) for field in _plain(endpoint)),
    ]
    return operation


def _plain(endpoint: Endpoint) -> list[Any]:
    """Columns that can be filtered by `column=value`."""
    return [
        field for field in endpoint.columns if value_schema(field.type).get("type") in ("boolean", "integer", "string")
    ]


def _parameter(name: str, text: str, schema: Document | None = None) -> Document:
    parameter = {"name": name, "in": "query", "required": False, "description": text}
    return parameter if schema is None else {**parameter, "schema": schema}


def _query(endpoint: Endpoint) -> Document:
    operation = _operation(endpoint, "query", "Rows that match a filter", _rows(endpoint), "408", "413", "415", "422")
    return {**operation, "requestBody": _body(f"{endpoint.name}_query")}


def _count(endpoint: Endpoint) -> Document:
    answer = _answer("The number of matching rows.", {"type": "integer", "minimum": 0})
    operation = _operation(
        endpoint, "count", "The number of rows that match a filter", answer, "408", "413", "415", "422"
    )
    return {**operation, "requestBody": _body(f"{endpoint.name}_count")}


def _events(endpoint: Endpoint) -> Document:
    answer: Document = {"description": "Changes as they happen.", "content": {"text/event-stream": {}}}
    operation = _operation(endpoint, "watch", "Live changes (SSE, or a WebSocket at the same URL)", answer)
    reference = {"schema": {"$ref": f"#/components/schemas/{endpoint.name}_filter"}}
    operation["parameters"] = [
        {**_parameter("$filter", "Only changes of matching rows."), "content": {"application/json": reference}},
        _parameter("types", "Any of insert, update, delete, separated by commas.", {"type": "string"}),
        _parameter("snapshot", "Whether to begin with the current rows.", {"type": "boolean"}),
        _parameter("after", "Resume after this event.", {"type": "string"}),
    ]
    return operation


def _push(table: str) -> Document:
    """Changes of a table: the response has neither a version nor a row."""
    refused = ("400", "401", "403", "404", "406", "408", "413", "415", "422", "429", "503")
    counted = {"type": "integer", "minimum": 1}
    answer = {"type": "object", "properties": {"accepted": counted, "position": counted}}
    accepted = {
        "description": "The changes are durable, and will soon be in the table.",
        "content": {"application/json": {"schema": {**answer, "required": ["accepted", "position"]}}},
    }
    return {
        "operationId": f"push_{table}",
        "tags": [f"tables/{table}"],
        "summary": f"Insert, update and delete rows of the table {table} atomically",
        "parameters": [_header("Idempotency-Key", _AGAIN)],
        "requestBody": {**_body(f"tables_{table}"), "required": True},
        "responses": {"200": accepted, **{status: {"$ref": f"#/components/responses/{status}"} for status in refused}},
    }


def _post(stream: str, source: HttpSource) -> Document:
    """A record of a stream, in the form that the project defines."""
    refused = ("400", "401", "403", "408", "413", "415", "422", "429", "503")
    accepted = {
        "description": "The record is durable.",
        "content": {"application/json": {"schema": {"type": "object"}}},
    }
    named = [field.header for field in source.fields.values() if field.header is not None]
    return {
        "operationId": f"post_{stream}",
        "tags": [stream],
        "summary": f"Add a record to the stream {stream}; its body may be compressed with gzip or deflate",
        "parameters": [
            _header("Idempotency-Key", _AGAIN),
            *(_header(name, "Becomes part of the record.") for name in dict.fromkeys(named)),
        ],
        "requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}},
        "responses": {"200": accepted, **{status: _refused(source, status) for status in refused}},
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
