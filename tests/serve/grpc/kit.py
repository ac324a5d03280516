"""A running gRPC server, and a client that knows nothing but its address."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from headrace.core.encoding.descriptors import build_pool
from headrace.serve.base.settings import Settings
from headrace.serve.grpc.server import Server

COMMON = "headrace.v1.CommonService"
Metadata = Sequence[tuple[str, str]]


class Running:
    """A server on a thread of its own."""

    def __init__(self, settings: Settings) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.server: Server = self.run(self._made(settings))
        self.port: int = self.run(self.server.start("127.0.0.1", 0))
        self._clients: list[Client] = []

    @staticmethod
    async def _made(settings: Settings) -> Server:
        return Server(settings)

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(10)

    def client(self, key: str | None = None) -> Client:
        self._clients.append(Client(self.port, [("x-api-key", key)] if key else []))
        return self._clients[-1]

    def stop(self, seconds: float = 1.0) -> None:
        self.run(self.server.stop(seconds))

    def close(self) -> None:
        for client in self._clients:
            client.channel.close()
        self.stop(0.0)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class Client:
    """Learns by reflection what there is to call."""

    def __init__(self, port: int, metadata: Metadata = ()) -> None:
        # a subchannel of its own: else connections are shared by all clients of the test process
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)])
        self.metadata = list(metadata)
        self._pools: dict[str, DescriptorPool] = {}

    def reflect(self, **question: Any) -> Any:
        stub = reflection_pb2_grpc.ServerReflectionStub(self.channel)
        request = reflection_pb2.ServerReflectionRequest(**question)
        (answer,) = stub.ServerReflectionInfo(iter([request]), metadata=self.metadata, timeout=10)
        return answer

    def services(self) -> list[str]:
        answer = self.reflect(list_services="*")
        return sorted(one.name for one in answer.list_services_response.service)

    def files(self, symbol: str) -> list[FileDescriptorProto]:
        found = self.reflect(file_containing_symbol=symbol).file_descriptor_response.file_descriptor_proto
        return [FileDescriptorProto.FromString(one) for one in found]

    def method(self, service: str, name: str) -> Any:
        if service not in self._pools:
            self._pools[service] = build_pool(self.files(service))
        return self._pools[service].FindServiceByName(service).FindMethodByName(name)

    def call(self, service: str, name: str, more: Metadata = (), **fields: Any) -> Any:
        method = self.method(service, name)
        question = GetMessageClass(method.input_type)(**fields)
        path = f"/{service}/{name}"
        kinds = {
            "request_serializer": lambda message: message.SerializeToString(),
            "response_deserializer": GetMessageClass(method.output_type).FromString,
        }
        make = self.channel.unary_stream if method.server_streaming else self.channel.unary_unary
        return make(path, **kinds)(question, metadata=[*self.metadata, *more], timeout=20)

    def raw(self, path: str, message: bytes = b"", **more: Any) -> Any:
        return self.channel.unary_unary(path)(message, metadata=self.metadata, timeout=10, **more)


def refusal(call: Any) -> tuple[grpc.StatusCode, str | None, str | None]:
    """How a call went that was refused: the status, and the code and hint in its trailers."""
    try:
        call()
    except grpc.RpcError as error:
        found = dict(error.trailing_metadata() or ())  # type: ignore[attr-defined]
        return error.code(), found.get("headrace-code"), found.get("headrace-hint")  # type: ignore[attr-defined]
    raise AssertionError("it was answered")


def take(stream: Iterator[Any], count: int) -> list[Any]:
    """The next events, without heartbeats."""
    found: list[Any] = []
    while len(found) < count:
        event = next(stream)
        if event.type != 7:
            found.append(event)
    return found
