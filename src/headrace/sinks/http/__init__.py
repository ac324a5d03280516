"""`type: http`: rows as requests to a server."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Self
from urllib.parse import urlsplit

import pyarrow as pa
from pydantic import Field, SecretStr, model_validator

from headrace.core.capabilities import AppendsAfterSwitch, DescribesRewind, ReadsAllRows, Rewind
from headrace.core.context import Batch, Context
from headrace.core.lazy import lazy_modules
from headrace.core.sink import Delivery
from headrace.sinks import _templates as templates
from headrace.sinks._documents import document, require_columns
from headrace.sinks._refused import ON_ERROR_DESCRIPTION, OnRefusal, Report, write_counted
from headrace.sinks.http.requests import Body, HttpWrite
from headrace.systems.http.options import HttpOptions, HttpUrl
from headrace.systems.services import service_unavailable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F
else:
    F = lazy_modules("pyspark.sql.functions")

_PORTS = {"http": 80, "https": 443}


class HttpSink(HttpOptions, DescribesRewind, AppendsAfterSwitch, ReadsAllRows):
    """Rows as JSON in HTTP requests: many per request as an array or as lines, or one per request.

    A 2xx answer is success. 429, 5xx and an unavailable server are retried, after the time in `Retry-After` if given
    (at most 30 s). A request that is refused with 400, 409, 413 or 422 is halved until the rows at fault are found.
    Delivery: at least once; a repeated batch sends the same `Idempotency-Key`, so a server that honours it accepts each
    row once. The key is made of flow, generation, batch, place and content. Order: rows of a task are sorted by
    `order_by`, else by content, since only then are the requests of a batch that is run again the same; with `capacity`
    above 1 requests overtake each other. Scale: `capacity` connections per task.
    """

    type: Literal["http"] = "http"
    url: HttpUrl = Field(
        description="Where requests go. With `body: row`, {column} stands for a column's value.",
        examples=["https://api.example.com/orders", "https://api.example.com/orders/{order_id}"],
    )
    headers: dict[str, SecretStr] = Field(
        default={},
        description="Further headers of every request. With `body: row`, {column} stands for a column's value and {{ "
        "for a brace.",
        examples=[{"Authorization": "Bearer ${secret:TOKEN}"}],
    )
    method: Literal["POST", "PUT", "PATCH"] = Field("POST", description="Method of the requests.")
    body: Body = Field(
        "array",
        description="What a request holds: `array` a JSON array, `lines` one object per line, `row` one object.",
    )
    nulls: Literal["keep", "omit"] = Field("keep", description="Whether objects have fields that are null.")
    order_by: list[str] = Field(
        default=[], description="Columns to sort the rows of a task by.", examples=[["created_at", "order_id"]]
    )
    batch_size: int = Field(500, gt=0, description="Rows per request.")
    batch_bytes: int = Field(1_000_000, gt=0, description="Bytes per request, before compression.")
    capacity: int = Field(1, gt=0, le=64, description="Requests in flight per task.")
    gzip: bool = Field(False, description="Whether requests are compressed.")
    on_error: OnRefusal = Field("dead_letter", description=ON_ERROR_DESCRIPTION)

    @model_validator(mode="after")
    def _templates_are_for_rows(self) -> Self:
        used = templates.columns_of(self.url) if self.body == "row" else []
        if self.body != "row" and "{" in self.url:
            raise ValueError(
                f"a request of `body: {self.body}` holds many rows: `url` can use columns with `body: row`"
            )
        if used and "{" in urlsplit(self.url).netloc:
            raise ValueError("the server of `url` cannot come from a column")
        for value in self.headers.values() if self.body == "row" else ():
            templates.parts(value.get_secret_value())
        return self

    @property
    def guarantee(self) -> Delivery:
        """The idempotency key lets a server skip repeated requests."""
        return "at_least_once"

    @property
    def target(self) -> str:
        return self.url

    @property
    def label(self) -> str:
        """The server; what follows in the address may be secret."""
        return f"http {self.method} {urlsplit(self.url).netloc}"

    def check(self, context: Context) -> None:
        """The server accepts connections. No request is sent, since it might have an effect."""
        parts = urlsplit(self.url)
        address = (str(parts.hostname), parts.port or _PORTS[parts.scheme])
        try:
            socket.create_connection(address, timeout=min(self.timeout.total_seconds(), 10.0)).close()
        except OSError as error:
            raise service_unavailable(self.label, str(error)) from error

    def check_rows(self, context: Context, columns: Sequence[str], output: str, schema: pa.Schema | None) -> None:
        """All named columns exist. Every output is possible: an updated row is another request."""
        require_columns(self.label, "order_by", self.order_by, columns)
        if self.body == "row":
            require_columns(self.label, "url", templates.columns_of(self.url), columns)
            for value in self.headers.values():
                require_columns(self.label, "headers", templates.columns_of(value.get_secret_value()), columns)

    def requests(self, rows: DataFrame) -> DataFrame:
        """`body`, `url` and the headers of each row, in the order in which they are sent."""
        single = self.body == "row"
        url = templates.filled(self.url, templates.in_url) if single else F.lit(self.url)
        values = [value.get_secret_value() for value in self.headers.values()] if single else []
        headers = [templates.filled(value).alias(f"header_{index}") for index, value in enumerate(values)]
        order = [F.col(f"`{name}`").alias(f"order_{index}") for index, name in enumerate(self.order_by)]
        made = rows.select(
            document(rows.columns, nulls=self.nulls == "keep").alias("body"), url.alias("url"), *headers, *order
        )
        placed = made.sortWithinPartitions(*(f"order_{index}" for index in range(len(order))), "body", "url")
        return placed.drop(*(f"order_{index}" for index in range(len(order))))

    def write_batch(self, rows: DataFrame, batch: Batch) -> None:
        single = self.body == "row"
        write = HttpWrite(
            client=self.client(self.label, self.url, batch.context, own_headers=not single),
            method=self.method,
            body=self.body,
            header_names=tuple(self.headers) if single else (),
            identity=f"{batch.flow}|{batch.generation}|{batch.sink}|{batch.batch_id}",
            batch_size=self.batch_size,
            batch_bytes=self.batch_bytes,
            capacity=self.capacity,
            gzip=self.gzip,
            report=Report.of(batch, self.label, self.on_error),
        )
        write_counted(self.requests(rows), write, batch)

    def rewind_effect(self, rewind: Rewind, replace: bool) -> str:
        cannot = "; requests sent since cannot be undone" if replace else ""
        return f"{rewind.read_again}: their rows are sent again{cannot}"
