"""Translates the failure of a running query into an error that a user can act on, and decides on retries."""

from __future__ import annotations

import re
from typing import Any, Literal

from headrace.core.errors import Exit, ProjectError
from headrace.engine.spark.state_failures import from_state
from headrace.plan.model import FlowPlan

Fault = Literal["own", "outside", "unknown"]

_BAD_RECORD = re.compile(r"BadRecordError: (.*)")
_PROJECT_ERROR = re.compile(r"error\[([a-z-]+)\]: (.*)(?:\n  --> .*)?(?:\n  hint: (.*))?")
_FILE = re.compile(r"\[FAILED_READ_FILE\.\w+\] Encountered error while reading file (?:file:/*(?=/))?(\S+?)\.?\s")
# Kafka's exceptions for a cluster that is unavailable, moves or comes back
_KAFKA_UNAVAILABLE = (
    r"org\.apache\.kafka\.common\.errors\.(Timeout|Disconnect|Network|BrokerNotAvailable|LeaderNotAvailable|"
    r"NotLeaderOrFollower|NotCoordinator|Coordinator\w+|NotController|UnknownServer)Exception"
    r"|Timed out waiting for a node assignment|Failed to create new KafkaAdminClient|No resolvable bootstrap"
    r"|KafkaError\{code=(_TRANSPORT|_ALL_BROKERS_DOWN|_TIMED_OUT|_RESOLVE)"
)
_FULL = re.compile(r"No space left on device|Disk quota exceeded")
_READ_ONLY = re.compile(r"Read-only file system")
_KAFKA = re.compile(_KAFKA_UNAVAILABLE)
_MEMORY = re.compile(r"org\.apache\.arrow\.memory\.OutOfMemoryException|OutOfDirectMemoryError")
_EXECUTOR = re.compile(
    r"ExecutorLostFailure|Lost executor|ExecutorDeadException|Lost worker|executor .{0,80} (exited|lost)"
    # on a busy machine: Spark gives a new Python process ten seconds to start
    r"|Python worker failed to connect back"
)
# of Hadoop's object store client, and of ours
_STORE = re.compile(r"org\.apache\.hadoop\.fs\.s3a\.AWS\w+Exception|\bStoreError: ")
_NETWORK = re.compile(r"Connection refused|Connection reset|NoRouteToHost|UnknownHostException|SocketTimeoutException")
_UNAVAILABLE = frozenset(
    {
        "broker-unreachable",
        "disk-full",
        "executor-lost",
        "service-away",
        "state-missing",
        "state-unreachable",
        "state-unwritable",
    }
)
# at the first start the project is probably wrong; later something was removed, and may come back
_REMOVED = frozenset(
    {
        "topic-missing",
        "lake-missing",
        "table-missing",
        "no-files",
        "folder-not-writable",
        "not-a-folder",
        "kafka-authentication",
        "kafka-authorization",
        "kafka-tls",
        "service-authentication",
        "service-refused",
        "service-tls",
        "sink-missing",
    }
)
_UNCLEAR = frozenset({"flow-failed", "bad-file", "kafka-refused", "kafka-fenced", "sink-refused", "out-of-memory"})


def fault_of(error: ProjectError, *, has_run: bool) -> Fault:
    """The cause: the project (`own`: a retry does not help), a system `outside` (it may recover), or `unknown`.

    `has_run`: whether the flow has run since the engine started.
    """
    if error.code in _UNAVAILABLE or (has_run and error.code in _REMOVED):
        return "outside"
    return "unknown" if error.code in _UNCLEAR else "own"


def from_query(flow: FlowPlan, exception: Any) -> ProjectError:
    """The error of a failed query. The full text is in the engine's log."""
    text = str(exception)
    bad = _BAD_RECORD.search(text)
    if bad:
        return ProjectError(
            "bad-record",
            f"flow '{flow.name}' met a {bad[1]}",
            hint="on_error: dead_letter would store the record and continue",
        )
    project = _PROJECT_ERROR.search(text)
    if project:
        exit_code = Exit.TRANSIENT if project[1] in _UNAVAILABLE else Exit.FAILED
        return ProjectError(project[1], f"flow '{flow.name}': {project[2]}", hint=project[3], exit_code=exit_code)
    if _MEMORY.search(text):
        message = f"flow '{flow.name}': a batch of records does not fit into memory: {_line_with(text, _MEMORY)}"
        return ProjectError("out-of-memory", message, hint="increase spark.memory, or decrease max_records of the flow")
    return (
        from_state(flow, text)
        or _from_outside(flow, text)
        or _from_file(text, f"flow '{flow.name}': ")
        or ProjectError(
            "flow-failed",
            f"flow '{flow.name}' failed: {_cause(text)}",
            hint="see logs/engine.log in the state folder for the full error",
        )
    )


def from_worker(text: str) -> ProjectError | None:
    """The error of a Python worker during an ad-hoc query: a ProjectError, or that of a function."""
    project = _PROJECT_ERROR.search(text)
    if project:
        return ProjectError(project[1], project[2], hint=project[3])
    file = _from_file(text)
    if file is not None:
        return file
    if "Traceback (most recent call last)" not in text:
        return None
    return ProjectError("function-failed", f"a Python function failed: {_python_cause(text)}")


def _from_file(text: str, prefix: str = "") -> ProjectError | None:
    """A source file that is truncated or has another format."""
    file = _FILE.search(text)
    if file is None:
        return None
    message = f"{prefix}{file[1]} cannot be read: {_cause(text)}"
    return ProjectError("bad-file", message, hint="check that the file is complete and has the right format")


def _from_outside(flow: FlowPlan, text: str) -> ProjectError | None:
    """Failures of other systems. A full disk is checked first, as it causes many other errors."""

    def error(code: str, pattern: re.Pattern[str], hint: str) -> ProjectError:
        message = f"flow '{flow.name}' was stopped from outside: {_line_with(text, pattern)}"
        return ProjectError(code, message, hint=hint, exit_code=Exit.TRANSIENT)

    if _FULL.search(text):
        return error("disk-full", _FULL, "free some space on the disk")
    if _READ_ONLY.search(text):
        return error("state-unwritable", _READ_ONLY, "make the folder writable again")
    if _KAFKA.search(text):
        return error("broker-unreachable", _KAFKA, "check that the broker is running and reachable")
    if _EXECUTOR.search(text):
        return error("executor-lost", _EXECUTOR, "check the Spark workers; a busy machine may start them too slowly")
    if _STORE.search(text):
        return error("state-unreachable", _STORE, "check the object store, its keys and the network")
    if _NETWORK.search(text):
        return error("service-away", _NETWORK, "check that the service is running and reachable")
    return None


def _line_with(text: str, pattern: re.Pattern[str]) -> str:
    line = next(line for line in text.splitlines() if pattern.search(line))
    return line.strip().removeprefix("Caused by: ").rsplit("Exception: ", 1)[-1][:300]


def _python_cause(text: str) -> str:
    """The last line of the last trace of a Python worker."""
    trace = text.rpartition("Traceback (most recent call last):")[2].splitlines()[1:]
    ending = next((line for line in trace if line and not line[0].isspace()), "")
    kind, colon, message = ending.partition(": ")
    return f"{kind.rsplit('.', 1)[-1]}{colon}{message.strip()[:300]}" if ending else _cause(text)


def _cause(text: str) -> str:
    """The last and deepest cause of a Java or Python trace, in one line."""
    causes = re.findall(r"(?:Caused by: |^)([\w.$]+(?:Exception|Error)): (.+)", text, re.MULTILINE)
    if causes:
        kind, message = causes[-1]
        return f"{kind.rsplit('.', 1)[-1]}: {message.strip()[:300]}"
    return text.strip().splitlines()[0][:300] if text.strip() else "no reason given"
