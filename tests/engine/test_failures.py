"""What users read when a running flow fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.engine.failures import from_query

FLOW: Any = SimpleNamespace(name="counts")


BAD_RECORD = "…\nheadrace.engine.decode.BadRecordError: record {'offset': 3} of stream 's': malformed: x\n…"
OWN_ERROR = "foreachBatch\nheadrace.core.errors.ProjectError: error[topic-missing]: there is no topic 'a'\n"
DISK_FULL = "[STREAM_FAILED] x\nCaused by: java.io.IOException: No space left on device\n at …"


@pytest.mark.parametrize(
    ("text", "code", "part"),
    [
        (BAD_RECORD, "bad-record", "offset"),
        (OWN_ERROR, "topic-missing", "topic 'a'"),
        (DISK_FULL, "flow-failed", "No space left"),
        ("", "flow-failed", "no reason"),
    ],
)
def test_the_cause_is_named(text: str, code: str, part: str) -> None:
    error = from_query(FLOW, text)
    assert error.code == code
    assert part in error.message
    assert "counts" in error.message
