from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyspark import cloudpickle

from headrace.core.context import Context
from headrace.core.errors import ProjectError
from headrace.core.runtime.backoff import Backoff
from headrace.core.schema import from_ddl
from headrace.formats._confluent import header_of, read_path
from headrace.formats.avro import AvroFormat
from headrace.formats.json import JsonFormat
from headrace.formats.protobuf import ProtobufFormat
from headrace.systems import schema_registry
from headrace.systems.schema_registry import Registry, RegistryUnreachableError

OLD = {"type": "record", "name": "R", "fields": [{"name": "gone", "type": "string"}, {"name": "i", "type": "int"}]}
NEW = {
    "type": "record",
    "name": "R",
    "fields": [{"name": "i", "type": "long"}, {"name": "s", "type": "string", "default": "?"}],
}
V2 = """
syntax = "proto3"; package shop.v2; import "common.proto";
message Other { int32 x = 1; }
message Order { string customer = 1; int64 id = 2; message Deep { int64 id = 7; } shop.common.Size size = 3; }
"""
COMMON = 'syntax = "proto3"; package shop.common; enum Size { S = 0; L = 1; }'


def avro(schema: Any, record: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), record)
    return out.getvalue()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (None, b"\0\0\0\1\2"),
        ((0,), b"\0\0\0\1\2\0"),
        ((1,), b"\0\0\0\1\2\2\2"),
        ((1, 0), b"\0\0\0\1\2\4\2\0"),
        ((64, 3), b"\0\0\0\1\2\4\x80\1\6"),
    ],
)
def test_golden_headers(path: tuple[int, ...] | None, expected: bytes) -> None:
    assert header_of(0x102, path) == expected
    if path is not None:
        assert read_path(expected[5:] + b"rest") == (path, len(expected) - 5)


@pytest.mark.parametrize("body", [b"", b"\2", b"\4\2", b"\3", b"\x80", b"\xff\xff\xff\xff\xff\xff", b"\2\1"])
def test_indexes_that_cannot_be_read(body: bytes) -> None:
    assert read_path(body) is None


def test_json_is_only_stripped(tmp_path: Path) -> None:
    context = Context(tmp_path, "state")
    format = JsonFormat(framing="confluent", schema_id=258)
    schema = from_ddl("a bigint")
    batch = pa.RecordBatch.from_pylist([{"a": 1}], schema)
    values = format.encoder(context, schema).encode(batch)
    assert values.to_pylist() == [b'\0\0\0\1\2{"a":1}']
    framed = [values[0].as_py(), b'{"a":2}', None, b"\0\0\0", b"\0\0\0\0\7{", b"\0\0\0\0\7", b'\0\0\0\0\7{"a":3}']
    decoded = format.decoder(context, schema).decode(pa.array(framed, pa.binary()))
    assert decoded.rows.to_pylist() == [{"a": 1}, {"a": 3}]
    reasons = {one.index: one.reason for one in decoded.bad}
    assert reasons == {1: "not-framed", 2: "empty", 3: "not-framed", 4: "malformed", 5: "empty"}
    assert format.infer(framed[:1]) == schema


def test_avro_is_read_with_the_schema_it_was_written_with(tmp_path: Path) -> None:
    context = Context(tmp_path, "state")
    for name, schema in (("old.avsc", OLD), ("new.avsc", NEW)):
        (tmp_path / name).write_text(json.dumps(schema))
    registry = Registry(files={1: "old.avsc", 2: "new.avsc"})
    format = AvroFormat(schema_file="new.avsc", framing="confluent", registry=registry)
    values = [
        header_of(2) + avro(NEW, {"i": 10, "s": "a"}),
        header_of(1) + avro(OLD, {"gone": "x", "i": 11}),
        header_of(9) + b"x",
        header_of(1) + b"\xff",
        header_of(2) + avro(NEW, {"i": 12, "s": "b"}),
    ]
    decoder = format.decoder(context, format.record_schema(context))
    decoder = cloudpickle.loads(cloudpickle.dumps(decoder))
    decoded = decoder.decode(pa.array(values, pa.binary()))
    assert decoded.rows.to_pylist() == [{"i": 10, "s": "a"}, {"i": 11, "s": "?"}, {"i": 12, "s": "b"}]
    assert [(one.index, one.reason) for one in decoded.bad] == [(2, "unknown-schema-id"), (3, "malformed")]
    assert decoder.decode(pa.array([], pa.binary())).rows.num_rows == 0
    writing = AvroFormat(schema_file="new.avsc", framing="confluent", schema_id=2)
    assert writing.encoder(context, decoded.rows.schema).encode(decoded.rows)[0].as_py() == values[0]


def test_protobuf_without_a_registry_skips_the_indexes(project: Context, message: Callable[[str], Any]) -> None:
    format = ProtobufFormat(descriptors="shop.desc", message="shop.Order.Line.Deep", framing="confluent", schema_id=7)
    rows = pa.RecordBatch.from_pylist([{"level": 3}], from_ddl("level int"))
    value = format.encoder(project, rows.schema).encode(rows)[0].as_py()
    made = message("shop.Order.Line.Deep")(level=3).SerializeToString()
    path, length = read_path(value[5:]) or ((), 0)
    assert (value[:5], value[5 + length :], len(path)) == (b"\0\0\0\0\7", made, 3)
    assert value[5:6] == b"\6"
    decoded = format.decoder(project, rows.schema).decode(pa.array([value, header_of(7, (0,)) + made, header_of(7)]))
    assert decoded.rows.to_pylist() == [{"level": 3}, {"level": 3}]
    assert [(one.index, one.reason) for one in decoded.bad] == [(2, "not-framed")]


ANSWERS: dict[str, Any] = {
    "/schemas/ids/1": {"schema": json.dumps(OLD)},
    "/schemas/ids/5": {
        "schemaType": "PROTOBUF",
        "schema": V2,
        "references": [{"name": "common.proto", "subject": "shop/common", "version": 3}],
    },
    "/subjects/shop%2Fcommon/versions/3": {"schema": COMMON},
}


@contextmanager
def serving(failures: int = 0, status: int = 503) -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    seen: list[tuple[str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append((self.path, self.headers.get("Authorization")))
            answer = ANSWERS.get(self.path)
            code = status if len(seen) <= failures else 200 if answer else 404
            self.send_response(code)
            self.end_headers()
            self.wfile.write(json.dumps(answer or {"error_code": 40403}).encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def registry_decoder(url: str, project: Context) -> Any:
    registry = Registry(url=url, headers={"Authorization": "Basic c2VjcmV0"})
    format = ProtobufFormat(descriptors="shop.desc", message="shop.Order", framing="confluent", registry=registry)
    assert "c2VjcmV0" not in repr(format) + repr(registry) + repr(registry.schemas(project))
    schema = from_ddl("id bigint, customer string, paid boolean, at timestamp")
    return cloudpickle.loads(cloudpickle.dumps(format.decoder(project, schema)))


def test_protobuf_is_read_with_the_message_it_was_written_with(project: Context) -> None:
    second_of_file = header_of(5, (1,)) + b"\x0a\x01c\x10\x2a"
    deep = header_of(5, (1, 0)) + b"\x38\x09"
    values = [
        second_of_file,
        header_of(6, (0,)),
        deep,
        header_of(5, (4,)),
        header_of(5, (0,)) + b"\x08\x01",
        second_of_file,
    ]
    with serving() as (url, seen):
        decoder = registry_decoder(url, project)
        decoded = decoder.decode(pa.array(values, pa.binary()))
        again = len(seen)
        assert decoder.decode(pa.array(values[:1], pa.binary())).rows.num_rows == 1
        assert len(seen) == again
    full = {"id": 42, "customer": "c", "paid": False, "at": None}
    other = {"id": 0, "customer": "", "paid": False, "at": None}
    assert decoded.rows.to_pylist() == [full, {**other, "id": 9}, other, full]
    assert [(one.index, one.reason) for one in decoded.bad] == [(1, "unknown-schema-id"), (3, "unknown-message")]
    assert {authorization for _, authorization in seen} == {"Basic c2VjcmV0"}


def test_a_registry_that_does_not_answer_fails_the_batch_not_the_record(
    project: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_registry, "_BACKOFF", Backoff(0.001, 0.001))
    value = pa.array([header_of(5, (1,)) + b"\x10\x2a"], pa.binary())
    with serving(failures=4) as (url, seen):
        assert registry_decoder(url, project).decode(value).rows.column("id").to_pylist() == [42]
        assert len([path for path, _ in seen if path == "/schemas/ids/5"]) == 5
    with serving(failures=5) as (url, _), pytest.raises(RegistryUnreachableError, match="did not answer"):
        registry_decoder(url, project).decode(value)
    with serving(failures=9, status=401) as (url, seen), pytest.raises(RegistryUnreachableError, match="401"):
        registry_decoder(url, project).decode(value)
    assert len(seen) == 1
    with pytest.raises(RegistryUnreachableError):
        registry_decoder(url, project).decode(value)


def test_options_that_do_not_go_together() -> None:
    for wrong in ({"registry": {"url": "http://x"}}, {"schema_id": 1}, {"framing": "confluent", "registry": {}}):
        with pytest.raises(ValueError, match=r"give either|need"):
            JsonFormat.model_validate({"type": "json", **wrong})
    with pytest.raises(ProjectError) as caught:
        JsonFormat(framing="confluent").encoder(Context(Path("."), "state"), from_ddl("a int"))
    assert caught.value.code == "missing-schema-id"
