"""Rows of one task as INSERT requests to a ClickHouse server."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.core.errors import ProjectError
from headrace.sinks._chunks import chunks, halves, request_key
from headrace.sinks._http import refusal
from headrace.sinks._refused import Report, task_number
from headrace.systems.http.client import HttpClient, HttpReply

_CODE = re.compile(rb"Code: (\d+)")
# time limits, too many queries or parts, memory, disk, network, read-only replicas, ZooKeeper
_TRANSIENT = frozenset({159, 202, 203, 209, 210, 236, 241, 242, 243, 252, 279, 285, 319, 394, 425, 439, 473, 999})
# texts, numbers, dates, arrays, enums, UUIDs and addresses that cannot be parsed, values out of range, constraints
_BAD_ROW = frozenset(
    {6, 25, 26, 27, 33, 36, 38, 41, 53, 69, 70, 72, 117, 130, 131, 321, 349, 376, 407, 441, 467, 469, 675, 676, 691}
)


class ClickHouseClient(HttpClient):
    """Tells errors apart by ClickHouse's own codes: most of them have the HTTP status 500, also those of bad rows."""

    def may_succeed_later(self, reply: HttpReply) -> bool:
        code = error_code(reply)
        return super().may_succeed_later(reply) if code is None else code in _TRANSIENT


def error_code(reply: HttpReply) -> int | None:
    """The code of an exception of the server, None where there is none."""
    match = None if reply.ok else _CODE.match(reply.body)
    return int(match[1]) if match else None


@dataclass(frozen=True)
class InsertWrite:
    """Inserts the rows of one task; called by Spark with Arrow batches of `documents`. Pickled to the workers."""

    client: ClickHouseClient
    query: str
    identity: str | None
    """Identifies the batch in deduplication tokens; None: the server knows none."""
    batch_size: int
    batch_bytes: int
    report: Report

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            rows = self._rows(batches)
            for portion in chunks(rows, lambda row: len(row[1]) + 1, self.batch_size, self.batch_bytes):
                self._insert(portion)
        finally:
            summary = list(self.report.batches())
        yield from summary

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
        number = 0
        for batch in batches:
            for body, keyed in zip(batch.column("body").to_pylist(), batch.column("keyed").to_pylist(), strict=True):
                if keyed:
                    yield number, body
                else:
                    self.report.refused(number, "no-key", "a column of `key` is null", body)
                number += 1

    def _insert(self, portion: Sequence[tuple[int, bytes]]) -> None:
        """Insert a portion; one with rows that the server cannot read is halved until they are found."""
        content = b"\n".join(body for _, body in portion)
        reply = self.client.send("POST", self.query + self._token(portion[0][0], content), content)
        if reply.ok:
            self.report.written(len(portion), len(content))
        elif error_code(reply) not in _BAD_ROW:
            raise _failed(self.client.label, reply)
        elif len(portion) == 1:
            self.report.refused(portion[0][0], "refused", reply.text, portion[0][1])
        else:
            for half in halves(portion):
                self._insert(half)

    def _token(self, row: int, content: bytes) -> str:
        if self.identity is None:
            return ""
        return f"&insert_deduplication_token={request_key(self.identity, task_number(), row, content)}"


def _failed(label: str, reply: HttpReply) -> ProjectError:
    if reply.status != 404:
        return refusal(label, reply)
    return ProjectError("sink-missing", f"{label}: {reply.text}", hint="create the table, or write `create: true`")
