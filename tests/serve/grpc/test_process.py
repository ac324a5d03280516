"""The gRPC process of a node: started, asked and ended as the node does it."""

from __future__ import annotations

import json
import time

import grpc
import psutil
import pytest
from tests.serve.grpc.kit import COMMON, Client, refusal
from tests.serve.kit import Served

from headrace.core.runtime.children import Child
from headrace.serve.base.ports import Port
from headrace.serve.base.settings import ServeProjectRef

pytestmark = pytest.mark.service


def _await_listening(children: list[Child]) -> None:
    deadline = time.monotonic() + 120
    while not all(psutil.Process(child.pid).net_connections("tcp") for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_processes_share_a_port_and_end_when_they_are_told(served: Served) -> None:
    port = Port("127.0.0.1", 0, "serve.grpc_port")
    serve = {"grpc_port": port.number, "store": str(served.folder / "store"), "log": str(served.folder / "log")}
    (served.folder / "headrace.yaml").write_text(json.dumps({"project": "cinema", "serve": serve}))
    told = ServeProjectRef(served.folder).environment()
    children = [Child(f"grpc-{number}", "headrace.serve.grpc", told) for number in (1, 2)]
    for child in children:
        child.start()
    try:
        _await_listening(children)
        client = Client(port.number)
        assert client.call(COMMON, "Count", endpoint="films").count == 20
        events = client.call(COMMON, "OnEvent", endpoint="films")
        assert next(events).token == "v1-20"
        for child in children:
            child.warn()
        assert refusal(lambda: list(events))[:2] == (grpc.StatusCode.UNAVAILABLE, "stopping")
        children[0].ask_to_end()
        assert children[0].process is not None
        assert children[0].process.wait(60) == 0
        assert children[1].process is not None
        assert children[1].process.stdin is not None
        children[1].process.stdin.close()  # as when the node is gone
        assert children[1].process.wait(60) == 0
    finally:
        for child in children:
            child.end(time.monotonic())
        port.close()
