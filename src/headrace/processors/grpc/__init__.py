"""`type: grpc`: calls a gRPC method for each row."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import pyarrow as pa
from pydantic import AfterValidator, Field, SecretStr, model_validator

from headrace.core.context import Context
from headrace.core.durations import Duration
from headrace.core.encoding.descriptors import compile_protos, find_method, read_descriptor_sets
from headrace.core.errors import ProjectError, did_you_mean
from headrace.core.lazy import lazy_modules
from headrace.core.processor import StepContext, Work
from headrace.processors._enrich import templates
from headrace.processors._enrich.async_requests import PROBE_SECONDS
from headrace.processors._enrich.enricher import Enricher
from headrace.systems.tls import ServiceTls

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

    from headrace.processors.grpc import client
else:
    client = lazy_modules("headrace.processors.grpc.client")

_METADATA_NAME = re.compile(r"[0-9a-z_.-]+")


def _address(value: str) -> str:
    host, _, port = value.rpartition(":")
    if "/" in value or not host or not port.isdecimal():
        raise ValueError(f"'{value}' is not the address of a gRPC server; write host:port")
    return value


class Grpc(Enricher):
    """Adds columns with the answer of a unary gRPC method about each row.

    Descriptor sets or .proto files define the messages: the server needs no reflection. The request is a JSON template.
    Columns are read from the answer by JSON path, with the names of the .proto file; unset fields have their defaults.
    NOT_FOUND gives nulls. So does a NULL in a column of the request, without a call. UNAVAILABLE, DEADLINE_EXCEEDED,
    RESOURCE_EXHAUSTED, ABORTED, INTERNAL and UNKNOWN are repeated `retries` times, and while no connection can be made
    until `give_up`; the flow is degraded meanwhile. UNAUTHENTICATED and UNIMPLEMENTED fail the flow.
    Delivery: no row is lost or doubled; a batch that runs again after a crash sends its requests again, and answers may
    differ. Order: that of the rows. Scale: one connection per task with `capacity` calls at a time, for the distinct
    keys of each Arrow batch; its answers are in memory at once.
    """

    type: Literal["grpc"] = "grpc"
    url: Annotated[str, AfterValidator(_address)] = Field(
        description="host:port of the server.", examples=["127.0.0.1:50051"]
    )
    method: str = Field(description="The method, with package and service.", examples=["shop.v1.Customers/GetCustomer"])
    descriptors: str | list[str] = Field(
        default=[],
        description="Descriptor set file(s), made by protoc --include_imports.",
        examples=["schemas/shop.desc"],
    )
    proto: str | list[str] = Field(
        default=[],
        description=".proto file(s), compiled when needed, instead of `descriptors`.",
        examples=["schemas/shop.proto"],
    )
    proto_path: str | list[str] = Field(
        default=[], description="Folders in which imports are looked up. Default: those of the .proto files."
    )
    request: str = Field(
        description="The request as JSON. {column} stands for a column's value, which becomes JSON: a text gets its "
        "quotes, unless the place is between quotes already.",
        examples=['{"customer_id": {customer_id}}'],
    )
    metadata: dict[str, SecretStr] = Field(
        default={},
        description="Headers of the calls. {column} stands for a column's value, {{ for a brace.",
        examples=[{"authorization": "Bearer ${secret:TOKEN}"}],
    )
    tls: ServiceTls | None = Field(
        None, description="Talk over TLS: whom to trust and who we are.", examples=[{"ca": "tls/ca.pem"}]
    )
    max_response: int = Field(1_000_000, gt=0, description="The most bytes an answer may have.")
    timeout: Duration = Field(timedelta(seconds=10), description="Deadline of one call.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if bool(self.descriptors) == bool(self.proto):
            raise ValueError("give either `descriptors` or `proto`")
        if not isinstance(json.loads(_sample(self._request)), dict):
            raise ValueError("`request` is not a JSON object")
        for name, value in self.metadata.items():
            if not _METADATA_NAME.fullmatch(name):
                raise ValueError(f"'{name}' is not the name of a header: write lower-case letters, digits, - and _")
            templates.in_header(value.get_secret_value())
            templates.parts_of(value.get_secret_value(), templates.in_header)
        if self.tls is not None and not self.tls.verify:
            raise ValueError("gRPC has no TLS without verification; give `tls.ca`")
        return self

    @property
    def label(self) -> str:
        return f"grpc {self.method} at {self.url}"

    def request_columns(self) -> Sequence[str]:
        return templates.columns_of(self._request, *(parts for _, parts in self._metadata))

    def check(self, context: Context) -> None:
        """Check the method and the fields of the request against the descriptors, and connect."""
        service = self.service(context)
        self._check_method(service.descriptors)
        client.check_connection(service, PROBE_SECONDS)

    def work(self, schema: pa.Schema, at: StepContext) -> Work:
        self._check_method(self._descriptor_set(at.context))
        return super().work(schema, at)

    def service(self, context: Context) -> client.GrpcService:
        request_columns = self.request_columns()
        return client.GrpcService(
            label=self.label,
            address=self.url,
            method=self.method,
            descriptors=self._descriptor_set(context),
            request=templates.Text.of(self._request, request_columns),
            metadata=tuple((name, templates.Text.of(parts, request_columns)) for name, parts in self._metadata),
            tls=self.tls.texts(context) if self.tls is not None else None,
            timeout=self.timeout.total_seconds(),
            max_response=self.max_response,
        )

    def _descriptor_set(self, context: Context) -> bytes:
        if self.descriptors:
            return read_descriptor_sets(context, _listed(self.descriptors))
        return compile_protos(context, _listed(self.proto), _listed(self.proto_path))

    def _check_method(self, descriptors: bytes) -> None:
        method = find_method(descriptors, self.method)
        if method.client_streaming or method.server_streaming:
            raise ProjectError(
                "unknown-method", f"'{self.method}' is a streaming method", hint="a step calls unary methods"
            )
        _check_fields(json.loads(_sample(self._request)), method.input_type)

    @property
    def _request(self) -> templates.Parts:
        return templates.json_parts(self.request)

    @property
    def _metadata(self) -> list[tuple[str, templates.Parts]]:
        return [(n, templates.parts_of(v.get_secret_value(), templates.in_header)) for n, v in self.metadata.items()]


def _check_fields(request: dict[str, Any], message: Descriptor) -> None:
    """Refuse a field that the message does not have."""
    known = {name for field in message.fields for name in (field.name, field.json_name)}
    for name in request:
        if name not in known:
            raise ProjectError(
                "unknown-field",
                f"message '{message.full_name}' has no field '{name}'",
                hint=did_you_mean(name, [field.name for field in message.fields], "fields"),
            )


def _sample(parts: templates.Parts) -> str:
    return "".join(part if isinstance(part, str) else templates.sample(part) for part in parts)


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value
