from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass
from pydantic import ValidationError
from tests.processors.conftest import StepDesk

from headrace.core.encoding.descriptors import compile_text, find_method
from headrace.core.errors import ProjectError
from headrace.processors.grpc import Grpc
from headrace.testing.services.ports import choose

pytestmark = pytest.mark.service

PROTO = """
syntax = "proto3";
package shop;
message Question { string id = 1; int64 version = 2; map<string, string> hints = 3; }
message Customer { string name = 1; int64 orders = 2; Tier tier = 3; repeated string tags = 4; Place place = 5; }
message Place { double lat = 1; }
enum Tier { NONE = 0; GOLD = 1; }
service Customers { rpc Get (Question) returns (Customer); rpc Watch (Question) returns (stream Customer); }
"""
COLUMNS = {
    "name": "$.name",
    "orders": {"path": "$.orders", "type": "bigint"},
    "tier": "$.tier",
    "tags": {"path": "$.tags", "type": "array<string>"},
    "lat": {"path": "$.place.lat", "type": "double"},
}
STATUSES = {"missing": grpc.StatusCode.NOT_FOUND, "wrong": grpc.StatusCode.INVALID_ARGUMENT,
            "broken": grpc.StatusCode.INTERNAL, "who": grpc.StatusCode.UNAUTHENTICATED}  # fmt: skip
DESCRIPTORS = compile_text({"shop.proto": PROTO}, "shop.proto")


class Customers:
    """A service without reflection. The first call about `shy` is refused."""

    def __init__(self) -> None:
        method = find_method(DESCRIPTORS, "shop.Customers/Get")
        self.question, self.customer = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        self.asked: list[str] = []
        self.port = choose(["client"], {})["client"]
        self.server: Any = None

    def start(self) -> None:
        handler = grpc.unary_unary_rpc_method_handler(
            self.get,
            request_deserializer=self.question.FromString,
            response_serializer=lambda answer: answer.SerializeToString(),
        )
        self.server = grpc.server(futures.ThreadPoolExecutor(4))
        self.server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("shop.Customers", {"Get": handler})])
        assert self.server.add_insecure_port(f"127.0.0.1:{self.port}") == self.port
        self.server.start()

    def get(self, question: Any, context: Any) -> Any:
        self.asked.append(question.id)
        if question.id in STATUSES:
            context.abort(STATUSES[question.id], "told to")
        if question.id == "shy" and self.asked.count("shy") == 1:
            context.abort(grpc.StatusCode.UNKNOWN, "not yet")
        if question.id == "slow":
            threading.Event().wait(1)
        tenant = dict(context.invocation_metadata()).get("tenant")
        size = 10 if question.id != "big" else 2_000_000
        tags = [tenant or "", question.hints["by"], "x" * size]
        made = {"name": f"name of {question.id}", "orders": question.version, "tier": 1, "tags": tags}
        return self.customer(**made, place={"lat": 0.0})


@pytest.fixture(scope="module")
def customers() -> Iterator[Customers]:
    made = Customers()
    made.start()
    yield made
    made.server.stop(0)


def step(customers: Customers, folder: Path, **options: Any) -> Grpc:
    (folder / "shop.proto").write_text(PROTO)
    (folder / "shop.desc").write_bytes(DESCRIPTORS)
    given = {
        "url": f"127.0.0.1:{customers.port}",
        "method": "shop.Customers/Get",
        "descriptors": "shop.desc",
        "request": '{"id": {id}, "version": {n}, "hints": {"by": "row {n}"}}',
        "metadata": {"tenant": "t-{n}"},
        "columns": COLUMNS,
        "backoff": "1ms",
        **options,
    }
    return Grpc.model_validate(given)


def test_a_unary_call(customers: Customers, desk: StepDesk) -> None:
    asking = step(customers, desk.root)
    rows = desk.run(asking, {"id": ["a", "missing", None, "shy"], "n": [2**40, 2, 3, 4]})
    tags = ["t-1099511627776", "row 1099511627776", "x" * 10]
    assert rows[0] == {
        "id": "a", "n": 2**40, "name": "name of a", "orders": 2**40, "tier": "GOLD", "tags": tags, "lat": 0.0,
    }  # fmt: skip
    assert [row["name"] for row in rows[1:]] == [None, None, "name of shy"]
    assert (desk.counts["failures_404"], desk.counts["failures_5xx"], desk.counts["retries"]) == (1, 1, 1)
    asking.check(desk.context)


def test_calls_that_are_refused(customers: Customers, desk: StepDesk) -> None:
    asking = step(customers, desk.root, retries=0, proto="shop.proto", descriptors=[])
    ids = ["wrong", "broken", "big", "a"]
    assert [row["id"] for row in desk.run(asking, {"id": ids, "n": [1] * 4})] == ["a"]
    hasty = step(customers, desk.root, retries=0, timeout="200ms")
    assert desk.run(hasty, {"id": ["slow"], "n": [1]}) == []
    assert desk.reasons == ["grpc-invalid-argument", "grpc-internal", "response-too-large", "timeout"]
    bad = step(customers, desk.root, request='{"id": {id}, "version": {id}}', metadata={})
    assert desk.run(bad, {"id": ["a"]}) == []
    assert desk.reasons[4:] == ["bad-request"]
    with pytest.raises(ProjectError) as caught:
        desk.run(asking, {"id": ["who"], "n": [1]})
    assert caught.value.code == "service-authentication"


def test_a_server_that_comes_back(customers: Customers, desk: StepDesk) -> None:
    asking = step(customers, desk.root, retries=0)
    customers.server.stop(0).wait()
    with pytest.raises(ProjectError) as caught:
        asking.check(desk.context)
    assert caught.value.code == "service-away"
    back = threading.Timer(0.3, customers.start)
    back.start()
    assert desk.run(asking, {"id": ["a"], "n": [1]})[0]["name"] == "name of a"
    back.join()
    assert desk.kept.letters == []


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"method": "shop.Customers/Gett"}, "unknown-method"),
        ({"method": "shop.Customers/Watch"}, "unknown-method"),
        ({"request": '{"ident": {id}}'}, "unknown-field"),
        ({"descriptors": "shop.proto"}, "bad-descriptors"),
        ({"descriptors": "none"}, "missing-file"),
    ],
)
def test_what_is_wrong_is_said_before_the_start(
    customers: Customers, desk: StepDesk, options: dict[str, Any], code: str
) -> None:
    with pytest.raises(ProjectError) as caught:
        step(customers, desk.root, **options).check(desk.context)
    assert caught.value.code == code


@pytest.mark.parametrize(
    "options",
    [
        {"url": "http://a:1"},
        {"request": "[1]"},
        {"request": "{id}"},
        {"metadata": {"X-Upper": "a"}},
        {"metadata": {"a": "b\n"}},
        {"proto": "a.proto"},
        {"tls": {"verify": False}},
    ],
)
def test_options_that_are_refused(customers: Customers, tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        step(customers, tmp_path, **options)
