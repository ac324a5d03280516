"""Messages in the shapes that Debezium gives them: JSON with and without a schema, and Avro behind a schema id."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import fastavro

Field = dict[str, Any]


def field(name: str, kind: str, semantic: str | None = None, **more: Any) -> Field:
    """One field of a Connect schema."""
    return {"field": name, "type": kind, "optional": True, **({"name": semantic} if semantic else {}), **more}


def payload(op: str, before: Any, after: Any, at: int = 1_700_000_000_000) -> dict[str, Any]:
    source = {"version": "3.0.0.Final", "connector": "postgresql", "ts_ms": at, "table": "orders"}
    return {"before": before, "after": after, "source": source, "op": op, "ts_ms": at + 50}


def wrapped(columns: list[Field], said: Any) -> bytes:
    """A value with its schema."""
    row = {"type": "struct", "fields": columns, "optional": True, "name": "shop.public.orders.Value"}
    fields = [
        {**row, "field": "before"},
        {**row, "field": "after"},
        {"type": "struct", "fields": [field("ts_ms", "int64")], "field": "source"},
        field("op", "string"),
        field("ts_ms", "int64"),
    ]
    schema = {"type": "struct", "fields": fields, "optional": False, "name": "shop.public.orders.Envelope"}
    return json.dumps({"schema": schema, "payload": said}).encode()


def wrapped_key(columns: list[Field], said: Any) -> bytes:
    return json.dumps({"schema": {"type": "struct", "fields": columns}, "payload": said}).encode()


def bare(said: Any) -> bytes:
    return json.dumps(said).encode()


def avro_envelope(columns: list[dict[str, Any]]) -> dict[str, Any]:
    """The schema of a value: the row's is defined at `before` and named at `after`."""
    row = {"type": "record", "name": "Value", "fields": columns, "connect.name": "shop.public.orders.Value"}
    source = {"type": "record", "name": "Source", "fields": [{"name": "ts_ms", "type": "long"}]}
    return {
        "type": "record",
        "name": "Envelope",
        "namespace": "shop.public.orders",
        "fields": [
            {"name": "before", "type": ["null", row], "default": None},
            {"name": "after", "type": ["null", "Value"], "default": None},
            {"name": "source", "type": source},
            {"name": "op", "type": "string"},
            {"name": "ts_ms", "type": ["null", "long"], "default": None},
        ],
    }


def framed(number: int, schema: Any, value: Any) -> bytes:
    """Avro as Confluent's serializer writes it."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return b"\0" + number.to_bytes(4, "big") + out.getvalue()


@contextmanager
def registry(schemas: Mapping[int, Any]) -> Iterator[str]:
    """A schema registry that answers by id; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = schemas.get(int(self.path.rpartition("/")[2]))
            self.send_response(200 if found else 404)
            self.end_headers()
            self.wfile.write(json.dumps({"schema": json.dumps(found)} if found else {"error_code": 40403}).encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
