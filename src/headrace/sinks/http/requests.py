"""Rows of one task as HTTP requests with a key by which a server recognizes repeated ones."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from headrace.sinks._chunks import chunks, halves, request_key
from headrace.sinks._http import refusal
from headrace.sinks._refused import Report, task_number
from headrace.systems.http.client import HttpClient, HttpReply, gzipped

Body = Literal["array", "lines", "row"]

_CONTENT = {"array": "application/json", "lines": "application/x-ndjson", "row": "application/json"}
_BAD_CONTENT = frozenset({400, 409, 413, 422})
_NOT_IN_A_HEADER = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


@dataclass(frozen=True)
class RequestRow:
    """One row: its number in the task, its JSON, and the address and headers of its request."""

    number: int
    body: bytes
    url: str
    headers: tuple[tuple[str, str], ...] = ()


@dataclass
class Delivered:
    """The outcomes of some rows."""

    written: int = 0
    size: int = 0
    """Bytes of the requests that were taken."""
    refused: list[tuple[RequestRow, str]] = field(default_factory=list)


@dataclass(frozen=True)
class HttpWrite:
    """Sends the rows of one task; called by Spark with Arrow batches. Pickled to the workers.

    Columns: `body`, `url` (null: the row has none), and `header_N` for each of `header_names`.
    """

    client: HttpClient
    method: str
    body: Body
    header_names: tuple[str, ...]
    identity: str
    batch_size: int
    batch_bytes: int
    capacity: int
    gzip: bool
    report: Report

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = task_number()
        most = 1 if self.body == "row" else self.batch_size
        under_way: deque[Future[Delivered]] = deque()
        try:
            with ThreadPoolExecutor(self.capacity, "headrace http") as pool:
                for portion in chunks(self._rows(batches), lambda row: len(row.body) + 1, most, self.batch_bytes):
                    if len(under_way) >= self.capacity:
                        self._count(under_way.popleft().result())
                    under_way.append(pool.submit(self._deliver, portion, task))
                while under_way:
                    self._count(under_way.popleft().result())
        finally:
            summary = list(self.report.batches())
        yield from summary

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[RequestRow]:
        number = 0
        for batch in batches:
            bodies, urls = batch.column("body").to_pylist(), batch.column("url").to_pylist()
            values = [batch.column(f"header_{index}").to_pylist() for index in range(len(self.header_names))]
            for index, (body, url) in enumerate(zip(bodies, urls, strict=True)):
                headers = tuple((name, one[index]) for name, one in zip(self.header_names, values, strict=True))
                problem = _problem(url, headers)
                if problem is None:
                    yield RequestRow(number, body, url, headers)
                else:
                    self.report.refused(number, "no-request", problem, body)
                number += 1

    def _deliver(self, portion: Sequence[RequestRow], task: int) -> Delivered:
        """Send a portion; one that is refused for its content is halved until the rows at fault are found."""
        content = self._content(portion)
        headers = {"Content-Type": _CONTENT[self.body], **dict(portion[0].headers)}
        headers["Idempotency-Key"] = request_key(self.identity, task, portion[0].number, content)
        if self.gzip:
            content, encoding = gzipped(content)
            headers |= encoding
        answer = self.client.send(self.method, portion[0].url, content, headers, whole_url=True)
        if answer.ok:
            return Delivered(written=len(portion), size=len(content))
        if not self._for_content(answer):
            raise refusal(self.client.label, answer)
        if len(portion) == 1:
            return Delivered(refused=[(portion[0], answer.text)])
        first, second = (self._deliver(half, task) for half in halves(portion))
        return Delivered(first.written + second.written, first.size + second.size, first.refused + second.refused)

    def _content(self, portion: Sequence[RequestRow]) -> bytes:
        bodies = [row.body for row in portion]
        if self.body == "array":
            return b"[" + b",".join(bodies) + b"]"
        return b"".join(body + b"\n" for body in bodies) if self.body == "lines" else bodies[0]

    def _for_content(self, answer: HttpReply) -> bool:
        """Whether the content is at fault, so that other rows may succeed. With `body: row` the address may be, too."""
        return answer.status in _BAD_CONTENT or (self.body == "row" and 400 <= answer.status < 500)

    def _count(self, delivered: Delivered) -> None:
        self.report.written(delivered.written, delivered.size)
        for row, reason in delivered.refused:
            self.report.refused(row.number, "refused", reason, row.body)


def _problem(url: str | None, headers: Sequence[tuple[str, str | None]]) -> str | None:
    if url is None:
        return "a column of `url` is null"
    for name, value in headers:
        if value is None:
            return f"a column of header {name} is null"
        if _NOT_IN_A_HEADER.search(value):
            return f"header {name} has a line break or another control character"
    return None
