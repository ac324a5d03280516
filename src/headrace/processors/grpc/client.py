"""The client of a gRPC service whose messages are defined by descriptors."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import grpc
import grpc.aio
from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from headrace.core.encoding.descriptors import find_method
from headrace.processors._enrich import templates
from headrace.processors._enrich.async_requests import (
    FailedRequest,
    FailureClass,
    NoMatch,
    ServiceClient,
    timed_out,
    unreachable,
)
from headrace.systems.services import access_denied, request_refused, service_unavailable, untrusted_connection
from headrace.systems.tls import TlsTexts

_PASSING = (
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
)
_CLASSES: dict[grpc.StatusCode, FailureClass] = {
    grpc.StatusCode.INVALID_ARGUMENT: "4xx",
    grpc.StatusCode.FAILED_PRECONDITION: "4xx",
    grpc.StatusCode.OUT_OF_RANGE: "4xx",
    grpc.StatusCode.ALREADY_EXISTS: "4xx",
    grpc.StatusCode.PERMISSION_DENIED: "4xx",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "4xx",
    grpc.StatusCode.INTERNAL: "5xx",
    grpc.StatusCode.UNKNOWN: "5xx",
    grpc.StatusCode.DATA_LOSS: "5xx",
}
_TLS_TROUBLE = ("CERTIFICATE_VERIFY_FAILED", "Ssl handshake failed", "SSL_ERROR", "hostname verification")

GrpcRequest = tuple[str, tuple[tuple[str, str], ...]]


@dataclass
class GrpcService(ServiceClient):
    """Calls one method. Pickled to the workers; connects on first use."""

    label: str
    address: str
    method: str
    descriptors: bytes = field(repr=False)
    request: templates.Text
    metadata: tuple[tuple[str, templates.Text], ...] = field(repr=False)
    tls: TlsTexts | None = field(repr=False)
    timeout: float
    max_response: int
    _channel: Any = field(default=None, repr=False)
    _call: Any = field(default=None, repr=False)

    @cached_property
    def _messages(self) -> tuple[type[Message], type[Message]]:
        method = find_method(self.descriptors, self.method)
        return GetMessageClass(method.input_type), GetMessageClass(method.output_type)

    def request_for(self, values: Sequence[Any]) -> GrpcRequest:
        return self.request.filled(values), tuple([(name, text.filled(values)) for name, text in self.metadata])

    async def call(self, requests: Sequence[Any]) -> list[Any]:
        return [await self._answer(*request) for request in requests]

    async def _answer(self, request: str, metadata: tuple[tuple[str, str], ...]) -> Any:
        try:
            message = json_format.ParseDict(json.loads(request), self._messages[0]())
        except (json_format.ParseError, ValueError) as error:
            return FailedRequest("bad-request", f"the request does not fit its message: {str(error)[:200]}", "4xx")
        try:
            answer = await self._connected()(message, timeout=self.timeout, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            return self._answer_to(error.code(), error.details() or "")
        except DecodeError:
            return FailedRequest("bad-answer", "the answer is not the message that the descriptors say")
        return json_format.MessageToDict(
            answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )

    def _answer_to(self, status: grpc.StatusCode, details: str) -> Any:
        match status:
            case grpc.StatusCode.NOT_FOUND:
                return NoMatch()
            case grpc.StatusCode.UNAUTHENTICATED:
                raise access_denied(self.label, details)
            case grpc.StatusCode.UNIMPLEMENTED:
                raise request_refused(self.label, f"there is no such method: {details}", "check `method` and `url`")
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                return timed_out(self.timeout)
            case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED:
                if any(word in details for word in _TLS_TROUBLE):
                    raise untrusted_connection(self.label, details)
                return unreachable(details)
        reason = f"grpc-{status.name.lower().replace('_', '-')}"
        if status is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
            return FailedRequest("response-too-large", f"the answer has more than {self.max_response:,} bytes")
        return FailedRequest(reason, details[:200] or status.name, _CLASSES.get(status, "other"), status in _PASSING)

    async def probe(self) -> None:
        """Connect without calling the method, which might have effects."""
        self._connected()
        await self._channel.channel_ready()

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()
            self._channel = self._call = None

    def _connected(self) -> Callable[..., Any]:
        if self._call is None:
            sent, got = self._messages
            options = [
                ("grpc.max_receive_message_length", self.max_response),
                ("grpc.enable_retries", 0),
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 2000),
            ]
            if self.tls is None:
                self._channel = grpc.aio.insecure_channel(self.address, options)
            else:
                self._channel = grpc.aio.secure_channel(self.address, _credentials(self.tls), options)
            self._call = self._channel.unary_unary(
                f"/{self.method}", request_serializer=sent.SerializeToString, response_deserializer=got.FromString
            )
        call: Callable[..., Any] = self._call
        return call


def _credentials(tls: TlsTexts) -> grpc.ChannelCredentials:
    def coded(text: str | None) -> bytes | None:
        return None if text is None else text.encode()

    return grpc.ssl_channel_credentials(coded(tls.ca), coded(tls.key), coded(tls.certificate))


def check_connection(service: GrpcService, seconds: float) -> None:
    """Connect, from a thread without an event loop."""
    if service.tls is None:
        channel = grpc.insecure_channel(service.address)
    else:
        channel = grpc.secure_channel(service.address, _credentials(service.tls))
    with channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=seconds)
        except grpc.FutureTimeoutError:
            raise service_unavailable(service.label, f"no connection within {seconds:g} s") from None
