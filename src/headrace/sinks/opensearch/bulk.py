"""Documents of one task for the bulk interface of OpenSearch and Elasticsearch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from headrace.core.errors import ProjectError
from headrace.sinks._chunks import chunks, halves
from headrace.sinks._http import refusal
from headrace.sinks._refused import Report
from headrace.systems.http.client import HttpClient
from headrace.systems.services import SERVICE_BACKOFF, access_denied, service_unavailable

_PATH = (
    "/_bulk?filter_path=errors,items.*.status,items.*.error.type,items.*.error.reason,items.*.error.caused_by.reason"
)
_HEADERS = {"Content-Type": "application/x-ndjson"}
_BUSY = frozenset({429, 500, 502, 503, 504})


@dataclass(frozen=True)
class BulkItem:
    """One line of action and, unless it deletes, one of content."""

    row: int
    action: bytes
    content: bytes | None

    @property
    def lines(self) -> bytes:
        return self.action + b"\n" if self.content is None else self.action + b"\n" + self.content + b"\n"


@dataclass(frozen=True)
class BulkWrite:
    """Writes the documents of one task; called by Spark with Arrow batches of `action` and `content`.

    Pickled to the workers.
    """

    client: HttpClient
    batch_size: int
    batch_bytes: int
    versioned: bool
    report: Report

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            for portion in chunks(self._items(batches), lambda one: len(one.lines), self.batch_size, self.batch_bytes):
                self._write(portion)
        finally:
            summary = list(self.report.batches())
        yield from summary

    def _items(self, batches: Iterator[pa.RecordBatch]) -> Iterator[BulkItem]:
        number = 0
        for batch in batches:
            pairs = zip(batch.column("action").to_pylist(), batch.column("content").to_pylist(), strict=True)
            for action, content in pairs:
                if action is None:
                    self.report.refused(number, "no-id", "a column of `id`, `index` or `sequence` is null", content)
                else:
                    yield BulkItem(number, action, content)
                number += 1

    def _write(self, portion: Sequence[BulkItem]) -> None:
        """Send until every item is written, stale or refused; only items for which there was no room go again."""
        retries = SERVICE_BACKOFF.within(self.client.retry_for)
        waiting = list(portion)
        while waiting:
            body = b"".join(item.lines for item in waiting)
            answer = self.client.send("POST", _PATH, body, _HEADERS)
            if answer.status in (400, 413):
                self._split(waiting, answer.text)
                return
            if not answer.ok:
                raise refusal(self.client.label, answer)
            result = msgspec.json.decode(answer.body)
            if not result.get("errors"):
                self.report.written(len(waiting), len(body))
                return
            busy, why = self._sort_out(waiting, result["items"])
            if busy and not retries.wait():
                raise service_unavailable(self.client.label, why)
            waiting = busy

    def _split(self, portion: Sequence[BulkItem], why: str) -> None:
        if len(portion) == 1:
            self.report.refused(portion[0].row, "refused", why, portion[0].content or portion[0].action)
            return
        for half in halves(portion):
            self._write(half)

    def _sort_out(self, sent: Sequence[BulkItem], answers: Sequence[dict[str, Any]]) -> tuple[list[BulkItem], str]:
        """The items to send again, and the reason."""
        busy: list[BulkItem] = []
        why = ""
        for item, answer in zip(sent, answers, strict=True):
            ((action, result),) = answer.items()
            status, error = result["status"], result.get("error") or {}
            if status < 300 or (status == 404 and action == "delete"):
                self.report.written(1, len(item.lines))
            elif status == 409 and self.versioned:
                self.report.counts["stale"] += 1
            elif status in _BUSY or status == 409 or error.get("type") == "cluster_block_exception":
                busy.append(item)
                why = _reason(status, error)
            elif status in (401, 403, 404):
                raise self._not_allowed(status, error)
            else:
                self.report.refused(item.row, str(error.get("type", status)), _reason(status, error), item.content)
        return busy, why

    def _not_allowed(self, status: int, error: dict[str, Any]) -> ProjectError:
        reason = _reason(status, error)
        if status != 404:
            return access_denied(self.client.label, reason)
        return ProjectError(
            "sink-missing", f"{self.client.label}: {reason}", hint="create the index: the cluster does not create it"
        )


def _reason(status: int, error: dict[str, Any]) -> str:
    cause = (error.get("caused_by") or {}).get("reason")
    reason = f"{error.get('type', 'refused')}: {error.get('reason', '')}"
    return f"HTTP {status} {reason}" + (f" ({cause})" if cause else "")
