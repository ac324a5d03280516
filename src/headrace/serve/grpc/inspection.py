"""Server reflection and health checks.

Reflection shows a caller the services of the endpoints that it may see, with the columns that it may see.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection import ReflectionServicer

from headrace.core.encoding.descriptors import build_pool
from headrace.core.errors import RequestError
from headrace.serve.access.grants import Grant
from headrace.serve.grpc.calls import Caller, Method, Style
from headrace.serve.grpc.services import COMMON_SERVICE, TABLE_SERVICE, Services, parsed
from headrace.serve.grpc.typed import Typed, common_files, service_name

_HEALTH = "grpc.health.v1.Health"
# the two versions differ only in their name
_REFLECTION = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
_CHECK_SECONDS = 1.0
_CACHE_KEY = "grpc descriptors"
_Status = health_pb2.HealthCheckResponse


class Inspection:
    """The methods of reflection and health."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._methods = {
            f"/{_HEALTH}/Check": Method(Style.SLOW, self._check),
            f"/{_HEALTH}/Watch": Method(Style.STREAM, self._watch),
            **{f"/{name}/ServerReflectionInfo": Method(Style.TALK, self._reflect) for name in _REFLECTION},
        }

    def find(self, path: str) -> Method | None:
        return self._methods.get(path)

    async def _reflect(self, caller: Caller, messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for message in messages:
            try:
                request = reflection_pb2.ServerReflectionRequest.FromString(message)
            except DecodeError:
                raise RequestError("bad-call", "the message is not a reflection request") from None
            grant = self._services.grant(caller)
            if not grant.allows("write"):
                grant.check("read")
            servicer, pool = self._visible(grant)
            for reply in servicer.ServerReflectionInfo(iter((_of_service(request, pool),)), None):
                yield reply.SerializeToString()

    def _visible(self, grant: Grant) -> tuple[Any, DescriptorPool]:
        """The descriptors that a caller may see; recomputed when an endpoint or its version changes."""
        endpoints = []
        for name in self._services.access.names(grant) if grant.allows("read") else ():
            try:
                endpoints.append(self._services.access.open(grant, name))
            except RequestError as error:
                if error.status != 503:  # an endpoint that cannot answer yet has no columns
                    raise
        mark = tuple((access.endpoint.name, access.version) for access in endpoints)
        cached = grant.cache.get(_CACHE_KEY)
        if cached is None or cached[0] != mark:
            files = [
                Typed(self._services.typed(access).endpoint, access.endpoint.columns.names).file for access in endpoints
            ]
            names = [COMMON_SERVICE, TABLE_SERVICE, _HEALTH, _REFLECTION[1], *(service_name(name) for name, _ in mark)]
            pool = build_pool([*common_files(), *files, *_own_files()])
            cached = grant.cache[_CACHE_KEY] = (mark, (ReflectionServicer(names, pool=pool), pool))
        visible: tuple[Any, DescriptorPool] = cached[1]
        return visible

    def _check(self, caller: Caller, message: bytes) -> bytes:
        status = self._state(caller, parsed(health_pb2.HealthCheckRequest, message).service)
        if status == _Status.SERVICE_UNKNOWN:
            raise RequestError("no-service", "unknown service", status=404, hint="reflection lists the services")
        return bytes(_Status(status=status).SerializeToString())

    async def _watch(self, caller: Caller, message: bytes) -> AsyncIterator[bytes]:
        service = parsed(health_pb2.HealthCheckRequest, message).service
        last = None
        while not self._services.feeds.stopping:
            status = await asyncio.to_thread(self._state, caller, service)
            if status != last:
                last = status
                yield _Status(status=status).SerializeToString()
            await asyncio.sleep(_CHECK_SECONDS)

    def _state(self, caller: Caller, service: str) -> Any:
        """Whether all endpoints, or that of a service, can answer. Callers know only services that they may see."""
        states = {name: status["state"] for name, status in self._services.stores.status().items()}
        if service not in ("", COMMON_SERVICE, TABLE_SERVICE):
            try:
                grant = self._services.grant(caller)
            except RequestError:
                return _Status.SERVICE_UNKNOWN
            known = {service_name(name): name for name in self._services.access.names(grant)}
            if service not in known:
                return _Status.SERVICE_UNKNOWN
            states = {service: states.get(known[service], "hydrating")}
        return _Status.SERVING if all(state == "ready" for state in states.values()) else _Status.NOT_SERVING


def _of_service(request: Any, pool: DescriptorPool) -> Any:
    """A request for a method, which the library does not find, as a request for its service."""
    service, _, method = request.file_containing_symbol.rpartition(".")
    try:
        if method in pool.FindServiceByName(service).methods_by_name:
            return reflection_pb2.ServerReflectionRequest(host=request.host, file_containing_symbol=service)
    except KeyError:
        pass
    return request


def _own_files() -> list[FileDescriptorProto]:
    protos = []
    for module in (health_pb2, reflection_pb2):
        file = FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        protos.append(file)
    return protos
