"""What users read when a running flow fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.core.errors import ProjectError
from headrace.engine.spark.failures import fault_of, from_query

FLOW: Any = SimpleNamespace(name="counts")


BAD_RECORD = "…\nheadrace.engine.decode.BadRecordError: record {'offset': 3} of stream 's': malformed: x\n…"
OWN_ERROR = "foreachBatch\nheadrace.core.errors.ProjectError: error[topic-missing]: there is no topic 'a'\n"
CUT_OFF = (
    "Spark: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///data/a.json.gz.  X"
    "\n at …\nCaused by: java.io.EOFException: Unexpected end of input stream\n at …"
)
DISK_FULL = "[STREAM_FAILED] x\nCaused by: java.io.IOException: No space left on device\n at …"


@pytest.mark.parametrize(
    ("text", "code", "part"),
    [
        (BAD_RECORD, "bad-record", "offset"),
        (OWN_ERROR, "topic-missing", "topic 'a'"),
        (DISK_FULL, "disk-full", "No space left"),
        (CUT_OFF, "bad-file", ": /data/a.json.gz cannot be read: EOFException: Unexpected end of input stream"),
        ("", "flow-failed", "no reason"),
    ],
)
def test_the_cause_is_named(text: str, code: str, part: str) -> None:
    error = from_query(FLOW, text)
    assert error.code == code
    assert part in error.message
    assert "counts" in error.message


def test_an_error_of_a_worker_keeps_its_hint() -> None:
    error = from_query(FLOW, "…ProjectError: error[bad-avro-file]: no container\n  hint: is it another format?\n at …")
    assert (error.code, error.hint) == ("bad-avro-file", "is it another format?")


@pytest.mark.parametrize(
    ("code", "has_run", "fault"),
    [
        ("bad-record", True, "own"),
        ("sql-failed", True, "own"),
        ("needs-new-generation", True, "own"),
        ("disk-full", False, "outside"),
        ("state-missing", True, "outside"),
        ("state-unreachable", False, "outside"),
        ("state-taken", True, "own"),
        ("broker-unreachable", False, "outside"),
        ("topic-missing", False, "own"),
        ("topic-missing", True, "outside"),
        ("kafka-authentication", False, "own"),
        ("flow-failed", True, "unknown"),
        ("bad-file", True, "unknown"),
        ("kafka-fenced", True, "unknown"),
        ("service-away", False, "outside"),
        ("service-authentication", False, "own"),
        ("sink-missing", True, "outside"),
        ("sink-refused", True, "unknown"),
        ("sink-row-refused", True, "own"),
    ],
)
def test_whose_fault_it_is(code: str, has_run: bool, fault: str) -> None:
    assert fault_of(ProjectError(code, "x"), has_run=has_run) == fault


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (
            "org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment",
            "broker-unreachable",
        ),
        ("ExecutorLostFailure (executor 1 exited caused by one of the running tasks)", "executor-lost"),
        ("[STREAM_FAILED] terminated with exception: Python worker failed to connect back.", "executor-lost"),
        ("java.io.FileNotFoundException: /x/offsets/.5.tmp (Read-only file system)", "state-unwritable"),
        ("java.net.ConnectException: Connection refused", "service-away"),
        ("org.apache.hadoop.fs.s3a.AWSClientIOException: getFileStatus: Connection refused", "state-unreachable"),
        ("headrace.core.files.objects.StoreError: [Errno 5] no answer: 's3://b/k'", "state-unreachable"),
        ("No space left on device\nConnection refused", "disk-full"),
    ],
)
def test_what_comes_from_outside_is_known(text: str, code: str) -> None:
    assert from_query(FLOW, text).code == code
