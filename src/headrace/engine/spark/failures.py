"""Why a running query ended, in words a user can act on, and whose business it is to mend it."""

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
# Kafka's own exceptions for a cluster that is away, moves or comes back
_KAFKA_AWAY = (
    r"org\.apache\.kafka\.common\.errors\.(Timeout|Disconnect|Network|BrokerNotAvailable|LeaderNotAvailable|"
    r"NotLeaderOrFollower|NotCoordinator|Coordinator\w+|NotController|UnknownServer)Exception"
    r"|Timed out waiting for a node assignment|Failed to create new KafkaAdminClient|No resolvable bootstrap"
    r"|KafkaError\{code=(_TRANSPORT|_ALL_BROKERS_DOWN|_TIMED_OUT|_RESOLVE)"
)
_FULL = re.compile(r"No space left on device|Disk quota exceeded")
_READ_ONLY = re.compile(r"Read-only file system")
_KAFKA = re.compile(_KAFKA_AWAY)
_MEMORY = re.compile(r"org\.apache\.arrow\.memory\.OutOfMemoryException|OutOfDirectMemoryError")
_EXECUTOR = re.compile(
    r"ExecutorLostFailure|Lost executor|ExecutorDeadException|Lost worker|executor .{0,80} (exited|lost)"
    # a machine that is too busy: Spark gives a new Python process ten seconds
    r"|Python worker failed to connect back"
)
# Hadoop's client of an object store, and ours
_STORE = re.compile(r"org\.apache\.hadoop\.fs\.s3a\.AWS\w+Exception|\bStoreError: ")
_NETWORK = re.compile(r"Connection refused|Connection reset|NoRouteToHost|UnknownHostException|SocketTimeoutException")
_AWAY = frozenset(
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
# refused at the first start, when the project is probably wrong; later something was taken away that may come back
_TAKEN_AWAY = frozenset(
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
_NOBODY_KNOWS = frozenset({"flow-failed", "bad-file", "kafka-refused", "kafka-fenced", "sink-refused", "out-of-memory"})


def fault_of(error: ProjectError, *, has_run: bool) -> Fault:
    """Whose fault it is: the project's (`own`: no retry helps), something `outside` (it may come back), or `unknown`.

    `has_run`: whether the flow has worked since the engine started.
    """
    if error.code in _AWAY or (has_run and error.code in _TAKEN_AWAY):
        return "outside"
    return "unknown" if error.code in _NOBODY_KNOWS else "own"


def from_query(flow: FlowPlan, exception: Any) -> ProjectError:
    """The error of a failed query. Its whole text is in the engine's log."""
    text = str(exception)
    bad = _BAD_RECORD.search(text)
    if bad:
        return ProjectError(
            "bad-record", f"flow '{flow.name}' met a {bad[1]}", hint="on_error: dead_letter would keep it and go on"
        )
    own = _PROJECT_ERROR.search(text)
    if own:
        exit_code = Exit.TRANSIENT if own[1] in _AWAY else Exit.FAILED
        return ProjectError(own[1], f"flow '{flow.name}': {own[2]}", hint=own[3], exit_code=exit_code)
    if _MEMORY.search(text):
        message = f"flow '{flow.name}': a batch of records does not fit into memory: {_telling(text, _MEMORY)}"
        return ProjectError("out-of-memory", message, hint="give spark.memory more, or the flow a smaller max_records")
    return (
        from_state(flow, text)
        or _from_outside(flow, text)
        or _from_file(text, f"flow '{flow.name}': ")
        or ProjectError(
            "flow-failed",
            f"flow '{flow.name}' failed: {_cause(text)}",
            hint="the whole story is in logs/engine.log of the state folder",
        )
    )


def from_worker(text: str) -> ProjectError | None:
    """What went wrong in a Python worker while a question was answered: our own words, or those of a function."""
    own = _PROJECT_ERROR.search(text)
    if own:
        return ProjectError(own[1], own[2], hint=own[3])
    file = _from_file(text)
    if file is not None:
        return file
    if "Traceback (most recent call last)" not in text:
        return None
    return ProjectError("function-failed", f"a Python function failed: {_python_cause(text)}")


def _from_file(text: str, of: str = "") -> ProjectError | None:
    """A file of a source that is cut off, or not what it should be."""
    file = _FILE.search(text)
    if file is None:
        return None
    message = f"{of}{file[1]} cannot be read: {_cause(text)}"
    return ProjectError("bad-file", message, hint="is it whole, and of that kind? put a good one in its place")


def _from_outside(flow: FlowPlan, text: str) -> ProjectError | None:
    """What is known to come from elsewhere; a full disk is looked for first, as it makes many other errors."""

    def error(code: str, pattern: re.Pattern[str], hint: str) -> ProjectError:
        message = f"flow '{flow.name}' was stopped from outside: {_telling(text, pattern)}"
        return ProjectError(code, message, hint=hint, exit_code=Exit.TRANSIENT)

    if _FULL.search(text):
        return error("disk-full", _FULL, "make room on the disk")
    if _READ_ONLY.search(text):
        return error("state-unwritable", _READ_ONLY, "make the folder writable again")
    if _KAFKA.search(text):
        return error("broker-unreachable", _KAFKA, "check that the broker runs and can be reached")
    if _EXECUTOR.search(text):
        return error("executor-lost", _EXECUTOR, "look at the workers; a machine that is too busy starts none in time")
    if _STORE.search(text):
        return error("state-unreachable", _STORE, "check the object store, its keys and the network")
    if _NETWORK.search(text):
        return error("service-away", _NETWORK, "check that the service runs and can be reached")
    return None


def _telling(text: str, pattern: re.Pattern[str]) -> str:
    """The line that says it."""
    line = next(line for line in text.splitlines() if pattern.search(line))
    return line.strip().removeprefix("Caused by: ").rsplit("Exception: ", 1)[-1][:300]


def _python_cause(text: str) -> str:
    """What the last trace of a Python worker ends with, in one line."""
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
