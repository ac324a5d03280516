"""Dagger's external sources as enrichers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from headrace.core.errors import ProjectError
from headrace.migrate.draft import DESCRIPTORS_PATH, Draft, duration, escape_variables, header_value
from headrace.migrate.messages import message_of
from headrace.migrate.patterns import json_template, parameters, template

Step = dict[str, Any]
_TIMEOUT = "5000"


def http(draft: Draft, one: Mapping[str, Any], place: str) -> Step:
    """A call over HTTP: the pattern is the end of the address of a GET, and the body of a POST or PUT."""
    verb = str(one.get("verb", "GET")).upper()
    url = template(str(one["endpoint"]), str(one.get("endpoint_variables", "")), f"{place}.endpoint")
    make = template if verb == "GET" else json_template
    request = make(str(one.get("request_pattern", "")), str(one.get("request_variables", "")), place)
    headers = {str(name): escape_variables(str(value)) for name, value in (one.get("headers") or {}).items()}
    if one.get("header_pattern"):
        made = template(str(one["header_pattern"]), str(one.get("header_variables", "")), place)
        headers |= _header_lines(made)
    step: Step = {"type": "http", "method": verb, "url": escape_variables(url + request if verb == "GET" else url)}
    if verb != "GET" and request:
        step["body"] = escape_variables(request)
    if headers:
        step["headers"] = {
            name: header_value(draft, name, value, f"{place}.headers") for name, value in headers.items()
        }
    excluded = one.get("exclude_fail_on_errors_code_range")
    if excluded:
        step["exclude"] = str(excluded)
    return step | _common(draft, one, place)


def _header_lines(text: str) -> dict[str, str]:
    """`{{"a": "{b}"}}`: Dagger writes the headers of a pattern as a JSON object."""
    inside = text.strip().removeprefix("{{").removesuffix("}}")
    pairs = [part.partition(":") for part in inside.split(",") if ":" in part]
    return {name.strip(" \"'"): value.strip(" \"'") for name, _, value in pairs}


def elasticsearch(draft: Draft, one: Mapping[str, Any], place: str) -> Step:
    """A document of Elasticsearch: `/index/type/%s`."""
    hosts = [host.strip() for host in str(one["host"]).split(",")]
    address = hosts[0] if "://" in hosts[0] else f"http://{hosts[0]}:{one.get('port') or 9200}"
    if len(hosts) > 1:
        draft.note("check", f"{place}.host", f"only the first of {', '.join(hosts)} is asked")
    path = template(str(one["endpoint_pattern"]), str(one.get("endpoint_variables", "")), f"{place}.endpoint_pattern")
    parts = [part for part in path.split("/") if part]
    if len(parts) not in (2, 3) or "?" in path or parts[-1].startswith("_"):
        raise ProjectError("migrate-unknown", f"'{one['endpoint_pattern']}' is not the address of a document")
    step: Step = {"type": "elasticsearch", "url": escape_variables(address), "index": parts[0], "id": parts[-1]}
    step |= _login(draft, one, place) | _common(draft, one, place)
    for name, column in step["columns"].items():
        # the fields of the document itself are what a path begins at here
        if not re.match(r"\$\._source\b", column["path"]):
            raise ProjectError("migrate-unknown", f"'{column['path']}' of {name} is not in the document ($._source)")
        column["path"] = "$" + column["path"].removeprefix("$._source")
    return step


def postgres(draft: Draft, one: Mapping[str, Any], place: str) -> Step:
    """A row of PostgreSQL; what was put into the text of the query becomes a parameter."""
    host, database = str(one["host"]), str(one.get("database", ""))
    step: Step = {
        "type": "postgres",
        "url": escape_variables(f"postgresql://{host}:{one.get('port') or 5432}/{database}"),
        "query": escape_variables(parameters(str(one["query_pattern"]), str(one.get("query_variables", "")), place)),
    }
    return step | _login(draft, one, place) | _common(draft, one, place)


def grpc(draft: Draft, one: Mapping[str, Any], place: str) -> Step:
    """A unary call."""
    request = json_template(
        str(one["request_pattern"]), str(one.get("request_variables", "")), f"{place}.request_pattern"
    )
    headers = {str(name): escape_variables(str(value)) for name, value in (one.get("headers") or {}).items()}
    step: Step = {
        "type": "grpc",
        "url": f"{one['endpoint']}:{one['service_port']}",
        "method": str(one["grpc_method_url"]),
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
    return step | _common(draft, one, place)


def _login(draft: Draft, one: Mapping[str, Any], place: str) -> Step:
    made: Step = {}
    if one.get("user"):
        made["username"] = escape_variables(str(one["user"]))
    if one.get("password"):
        kind = place.rpartition(".")[2]
        made["password"] = draft.secret(f"{kind}_password", f"{place}.password")
    return made


def _common(draft: Draft, one: Mapping[str, Any], place: str) -> Step:
    """What all enrichers share."""
    made: Step = {"timeout": duration(str(one.get("stream_timeout") or _TIMEOUT))}
    if one.get("capacity"):
        made["capacity"] = int(one["capacity"])
    made["on_error"] = "fail" if str(one.get("fail_on_errors", "")).lower() == "true" else "null"
    made["columns"] = _columns(draft, one, place)
    return made


def _columns(draft: Draft, one: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The output columns, with the types of the fields that they fill."""
    types = _types(draft, str(one.get("type") or ""))
    made: dict[str, Any] = {}
    for name, source in (one.get("output_mapping") or {}).items():
        path = source.get("path") if isinstance(source, Mapping) else source
        made[name] = {"path": str(path), "type": types.get(name, "string")}
        if name not in types:
            draft.note("check", f"{place}.output_mapping.{name}", "it is taken for a string: write its type")
    return made


def _types(draft: Draft, java_class: str) -> dict[str, str]:
    """The types of the fields of a message, and of the one the sink writes."""
    from headrace.core.schema import ddl_type
    from headrace.formats.protobuf.types import message_schema

    found: dict[str, str] = {}
    for name in (str(draft.settings.get("SINK_KAFKA_PROTO_MESSAGE", "")), java_class):
        try:
            message = message_of(draft, name) if name else None
        except ProjectError:
            continue
        if message is not None:
            found |= {field.name: ddl_type(field.type) for field in message_schema(message)}
    return found


ENRICHERS: dict[str, Callable[[Draft, Mapping[str, Any], str], Step]] = {
    "http": http,
    "es": elasticsearch,
    "pg": postgres,
    "grpc": grpc,
}
