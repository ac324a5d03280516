"""Migrates the external sources of Dagger to enrichment processors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from headrace.core.errors import ProjectError
from headrace.core.schema import ddl_type
from headrace.formats.protobuf.types import message_schema
from headrace.migrate.draft import DESCRIPTORS_PATH, Draft, duration, escape_variables, header_value
from headrace.migrate.messages import message_of
from headrace.migrate.patterns import json_template, parameters, template

Step = dict[str, Any]
_TIMEOUT = "5000"


def http(draft: Draft, source: Mapping[str, Any], place: str) -> Step:
    """An HTTP call. The pattern is the end of the URL of a GET, and the body of a POST or PUT."""
    verb = str(source.get("verb", "GET")).upper()
    url = template(str(source["endpoint"]), str(source.get("endpoint_variables", "")), f"{place}.endpoint")
    to_template = template if verb == "GET" else json_template
    request = to_template(str(source.get("request_pattern", "")), str(source.get("request_variables", "")), place)
    headers = {str(name): escape_variables(str(value)) for name, value in (source.get("headers") or {}).items()}
    if source.get("header_pattern"):
        lines = template(str(source["header_pattern"]), str(source.get("header_variables", "")), place)
        headers |= _header_lines(lines)
    step: Step = {"type": "http", "method": verb, "url": escape_variables(url + request if verb == "GET" else url)}
    if verb != "GET" and request:
        step["body"] = escape_variables(request)
    if headers:
        step["headers"] = {
            name: header_value(draft, name, value, f"{place}.headers") for name, value in headers.items()
        }
    excluded = source.get("exclude_fail_on_errors_code_range")
    if excluded:
        step["exclude"] = str(excluded)
    return step | _common(draft, source, place)


def _header_lines(text: str) -> dict[str, str]:
    """Parse `{{"a": "{b}"}}`: Dagger writes the headers of a pattern as a JSON object."""
    inside = text.strip().removeprefix("{{").removesuffix("}}")
    pairs = [part.partition(":") for part in inside.split(",") if ":" in part]
    return {name.strip(" \"'"): value.strip(" \"'") for name, _, value in pairs}


def elasticsearch(draft: Draft, source: Mapping[str, Any], place: str) -> Step:
    """A document of Elasticsearch: `/index/type/%s`."""
    hosts = [host.strip() for host in str(source["host"]).split(",")]
    address = hosts[0] if "://" in hosts[0] else f"http://{hosts[0]}:{source.get('port') or 9200}"
    if len(hosts) > 1:
        draft.note("check", f"{place}.host", f"only the first of {', '.join(hosts)} is used")
    path = template(
        str(source["endpoint_pattern"]), str(source.get("endpoint_variables", "")), f"{place}.endpoint_pattern"
    )
    parts = [part for part in path.split("/") if part]
    if len(parts) not in (2, 3) or "?" in path or parts[-1].startswith("_"):
        raise ProjectError("migrate-unknown", f"'{source['endpoint_pattern']}' is not the path of a document")
    step: Step = {"type": "elasticsearch", "url": escape_variables(address), "index": parts[0], "id": parts[-1]}
    step |= _login(draft, source, place) | _common(draft, source, place)
    for name, column in step["columns"].items():
        # paths start at the fields of the document here
        if not re.match(r"\$\._source\b", column["path"]):
            raise ProjectError("migrate-unknown", f"'{column['path']}' of {name} is not in the document ($._source)")
        column["path"] = "$" + column["path"].removeprefix("$._source")
    return step


def postgres(draft: Draft, source: Mapping[str, Any], place: str) -> Step:
    """A row of PostgreSQL. Values that Dagger formats into the query become parameters."""
    host, database = str(source["host"]), str(source.get("database", ""))
    step: Step = {
        "type": "postgres",
        "url": escape_variables(f"postgresql://{host}:{source.get('port') or 5432}/{database}"),
        "query": escape_variables(
            parameters(str(source["query_pattern"]), str(source.get("query_variables", "")), place)
        ),
    }
    return step | _login(draft, source, place) | _common(draft, source, place)


def grpc(draft: Draft, source: Mapping[str, Any], place: str) -> Step:
    """A unary gRPC call."""
    request = json_template(
        str(source["request_pattern"]), str(source.get("request_variables", "")), f"{place}.request_pattern"
    )
    headers = {str(name): escape_variables(str(value)) for name, value in (source.get("headers") or {}).items()}
    step: Step = {
        "type": "grpc",
        "url": f"{source['endpoint']}:{source['service_port']}",
        "method": str(source["grpc_method_url"]),
        "descriptors": DESCRIPTORS_PATH,
        "request": escape_variables(request),
    }
    if draft.descriptors is None:
        draft.note(
            "check",
            f"{place}.grpc_stencil_url",
            f"put the descriptor set of the messages at {DESCRIPTORS_PATH}",
        )
    if headers:
        step["metadata"] = {
            name: header_value(draft, name, value, f"{place}.headers") for name, value in headers.items()
        }
    return step | _common(draft, source, place)


def _login(draft: Draft, source: Mapping[str, Any], place: str) -> Step:
    login: Step = {}
    if source.get("user"):
        login["username"] = escape_variables(str(source["user"]))
    if source.get("password"):
        kind = place.rpartition(".")[2]
        login["password"] = draft.secret(f"{kind}_password", f"{place}.password")
    return login


def _common(draft: Draft, source: Mapping[str, Any], place: str) -> Step:
    """The options that all enrichers share."""
    options: Step = {"timeout": duration(str(source.get("stream_timeout") or _TIMEOUT))}
    if source.get("capacity"):
        options["capacity"] = int(source["capacity"])
    options["on_error"] = "fail" if str(source.get("fail_on_errors", "")).lower() == "true" else "null"
    options["columns"] = _columns(draft, source, place)
    return options


def _columns(draft: Draft, source: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The output columns, with the types of the protobuf fields with the same names."""
    types = _types(draft, str(source.get("type") or ""))
    columns: dict[str, Any] = {}
    for name, value in (source.get("output_mapping") or {}).items():
        path = value.get("path") if isinstance(value, Mapping) else value
        columns[name] = {"path": str(path), "type": types.get(name, "string")}
        if name not in types:
            draft.note(
                "check", f"{place}.output_mapping.{name}", "its type is unknown, string is assumed: set its type"
            )
    return columns


def _types(draft: Draft, java_class: str) -> dict[str, str]:
    """The types of the fields of a message and of the message that the sink writes."""
    types: dict[str, str] = {}
    for name in (str(draft.settings.get("SINK_KAFKA_PROTO_MESSAGE", "")), java_class):
        try:
            message = message_of(draft, name) if name else None
        except ProjectError:
            continue
        if message is not None:
            types |= {field.name: ddl_type(field.type) for field in message_schema(message)}
    return types


ENRICHERS: dict[str, Callable[[Draft, Mapping[str, Any], str], Step]] = {
    "http": http,
    "es": elasticsearch,
    "pg": postgres,
    "grpc": grpc,
}
