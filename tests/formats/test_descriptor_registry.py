"""Descriptors over HTTP, from a real server that fails, changes and goes away."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from pydantic import ValidationError
from tests.formats.descriptor_server import DescriptorServer, descriptor_server

from headrace.core.context import Context
from headrace.core.errors import Exit, ProjectError
from headrace.core.format import Offer
from headrace.core.runtime.backoff import Backoff
from headrace.formats.protobuf import ProtobufFormat, descriptor_registry
from headrace.formats.protobuf.descriptor_registry import DescriptorRegistry

F = FieldDescriptorProto


def order(*fields: tuple[str, int, Any]) -> bytes:
    """The descriptor set of a message shop.Order with these fields."""
    file = FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    for name, number, kind in fields:
        message.field.add(name=name, number=number, type=kind, label=F.LABEL_OPTIONAL)
    return FileDescriptorSet(file=[file]).SerializeToString()


ID = ("id", 1, F.TYPE_INT64)
FIRST = order(ID)
SECOND = order(ID, ("note", 2, F.TYPE_STRING))
BROKEN = order(("id", 1, F.TYPE_STRING))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[DescriptorServer]:
    monkeypatch.setattr(descriptor_registry, "_BACKOFF", Backoff(0.001, 0.001))
    with descriptor_server(FIRST) as running:
        yield running


def form(server: DescriptorServer, **options: Any) -> ProtobufFormat:
    registry = {"url": server.url, "timeout": "2s", **options}
    return ProtobufFormat.model_validate({"message": "shop.Order", "descriptors": registry})


def ask_again(made: ProtobufFormat, context: Context) -> Offer | None:
    """What is offered when the kept copy has become old."""
    registry = made.descriptors
    assert isinstance(registry, DescriptorRegistry)
    registry.keep(context, made.message, replace(registry.load(context, made.message), asked_at=0.0))
    return made.offer(context)


def test_an_address_alone_is_a_registry_with_the_usual_options(server: DescriptorServer, context: Context) -> None:
    made = ProtobufFormat.model_validate({"message": "shop.Order", "descriptors": server.url})
    assert made.record_schema(context) == pa.schema([("id", pa.int64())])
    assert made.refresh_every is not None
    assert made.refresh_every.total_seconds() == 900
    made.record_schema(context)
    made.offer(context)
    assert len(server.requests) == 1, "a copy that is not old is not asked for again"


@pytest.mark.parametrize("given", [["http://a/b", "file.desc"], "ftp://a/b", {"url": "http://u:p@a/b"}, {"url": "x"}])
def test_what_is_no_address(given: Any, context: Context) -> None:
    with pytest.raises((ValidationError, ProjectError)):
        ProtobufFormat.model_validate({"message": "shop.Order", "descriptors": given}).record_schema(context)


def test_added_fields_are_offered_and_taken(server: DescriptorServer, context: Context) -> None:
    made = form(server)
    assert made.record_schema(context).names == ["id"]
    server.versions.append(SECOND)
    offer = ask_again(made, context)
    assert offer is not None
    assert offer.additions() == ["note"]
    assert offer.breaches(None) == []
    assert made.record_schema(context).names == ["id"], "nothing changes before it is accepted"
    assert offer.applied(made).record_schema(context).names == ["id", "note"]
    offer.accept()
    assert made.record_schema(context).names == ["id", "note"]
    assert ask_again(made, context) is None


def test_a_decoder_travels_with_its_descriptors(server: DescriptorServer, context: Context) -> None:
    made = form(server)
    decoder = pickle.loads(pickle.dumps(made.decoder(context, made.record_schema(context))))  # noqa: S301
    server.stop()
    assert decoder.decode(pa.array([b"\x08\x07"], pa.binary())).rows.to_pylist() == [{"id": 7}]
    server.start()


def test_what_is_refused_is_remembered_and_may_be_taken_back(server: DescriptorServer, context: Context) -> None:
    made = form(server)
    made.record_schema(context)
    server.versions.append(BROKEN)
    offer = ask_again(made, context)
    assert offer is not None
    assert offer.breaches(None) == ["id: was int64, and is string now (type-changed)"]
    offer.refuse("id changed")
    assert made.refusal(context) == "id changed"
    assert ask_again(made, context) is None, "once is enough"
    assert made.record_schema(context) == pa.schema([("id", pa.int64())])
    server.versions.append(FIRST)
    assert ask_again(made, context) is None
    assert made.refusal(context) is None


def test_what_has_not_changed_is_not_sent_again(server: DescriptorServer, context: Context) -> None:
    made = form(server)
    made.record_schema(context)
    assert ask_again(made, context) is None
    assert server.requests[-1][1].get("If-None-Match")


def test_versions(server: DescriptorServer, context: Context) -> None:
    server.versions.append(SECOND)
    pinned = form(server, version=1)
    assert pinned.record_schema(context).names == ["id"]
    assert pinned.refresh_every is None
    assert ask_again(pinned, context) is None
    newest = form(server, version="newest")
    assert newest.record_schema(context).names == ["id", "note"]
    assert [path for path, _ in server.requests] == ["/shop/versions/1", "/shop/versions", "/shop/versions/2"]
    assert ask_again(newest, context) is None
    assert server.requests[-1][0] == "/shop/versions", "a version that is known is not fetched again"
    with pytest.raises(ProjectError) as caught:
        form(server, version=9).record_schema(context)
    assert caught.value.code == "descriptors-refused"


def test_several_addresses_are_one_set(server: DescriptorServer, context: Context) -> None:
    other = FileDescriptorProto(name="other.proto", package="shop", syntax="proto3")
    other.message_type.add(name="Refund").field.add(name="sum", number=1, type=F.TYPE_INT32, label=F.LABEL_OPTIONAL)
    with descriptor_server(FileDescriptorSet(file=[other]).SerializeToString()) as second:
        registry = {"url": [server.url, second.url]}
        made = ProtobufFormat.model_validate({"message": "shop.Refund", "descriptors": registry})
        assert made.record_schema(context).names == ["sum"]


def test_failures_that_pass_are_waited_out(server: DescriptorServer, context: Context) -> None:
    server.failures = [500, 503, 429, 500]
    assert form(server).record_schema(context).names == ["id"]
    assert len(server.requests) == 5


def test_a_registry_that_is_away(server: DescriptorServer, context: Context) -> None:
    server.failures = [500] * 5
    with pytest.raises(ProjectError) as caught:
        form(server).record_schema(context)
    assert (caught.value.code, caught.value.exit_code) == ("descriptors-unreachable", Exit.TRANSIENT)
    made = form(server)
    made.record_schema(context)
    server.stop()
    assert made.record_schema(context).names == ["id"], "the kept copy is in force"
    with pytest.raises(ProjectError) as caught:
        ask_again(made, context)
    assert caught.value.code == "descriptors-unreachable"
    server.start()


@pytest.mark.parametrize(
    ("body", "code"), [(b"<html>", "bad-descriptors"), (SECOND.replace(b"Order", b"Ordre"), "unknown-message")]
)
def test_what_is_no_descriptor_set_is_not_kept(
    server: DescriptorServer, context: Context, body: bytes, code: str
) -> None:
    server.versions[:] = [body]
    with pytest.raises(ProjectError) as caught:
        form(server).record_schema(context)
    assert caught.value.code == code
    assert not list(Path(context.state).rglob("*.json"))


def test_an_answer_without_end(server: DescriptorServer, context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.systems.http.download._MOST_BYTES", 1000)
    server.versions[:] = [b"x" * 5000]
    with pytest.raises(ProjectError) as caught:
        form(server).record_schema(context)
    assert caught.value.code == "bad-descriptors"


def test_headers_are_sent_and_stay_secret(server: DescriptorServer, context: Context) -> None:
    made = form(server, headers={"X-Key": "sesame"})
    made.record_schema(context)
    assert server.requests[0][1]["X-Key"] == "sesame"
    assert "sesame" not in repr(made)
    assert "sesame" not in "".join(file.read_text() for file in Path(context.state).rglob("*.json"))
    with descriptor_server(SECOND) as elsewhere:
        server.redirect_to = elsewhere.url.replace("127.0.0.1", "localhost")
        assert ask_again(made, context) is not None
        assert "X-Key" not in elsewhere.requests[0][1], "secrets are for the server that was named"
