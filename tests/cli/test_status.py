"""status, wait and stop: what they say about an engine that runs, is paused, has ended or never was."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.operations.wait import condition
from headrace.core.errors import ProjectError
from headrace.engine.observe.http import StatusServer
from headrace.engine.state.lease import Owner
from headrace.engine.state.state import StateDir
from headrace.engine.state.status_file import read_status, write_status
from headrace.project.model import HttpSpec

from .conftest import Run, cpu_of_children

FLOW: dict[str, Any] = {
    "name": "big",
    "state": "running",
    "since": "2026-01-01T00:00:00.000Z",
    "reason": None,
    "note": None,
    "rows_in": 1234,
    "rows_per_s": 10.0,
    "batches": 3,
    "load": 0.25,
    "watermark_gap_s": None,
    "held_back_by": None,
    "lag": {"records": 40, "s": 4.0, "trend": "growing"},
    "caught_up": False,
    "late_rows": None,
    "dead_letters": 0,
    "restarts": 0,
    "last_error": None,
}
# holds the lock of a state folder until it is told to end, as an engine does
HOLDER = """
import signal, sys, threading
from pathlib import Path
from headrace.engine.state.state import StateDir
ended = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: ended.set())
with StateDir(Path(sys.argv[1])).lock():
    print("ready", flush=True)
    ended.wait(60)
"""


def document(pid: int, age: float = 0.0, http: str | None = None, **flow: Any) -> dict[str, Any]:
    at = (datetime.now(UTC) - timedelta(seconds=age)).isoformat().replace("+00:00", "Z")
    engine = {"pid": pid, "state": "running", "started_at": at, "http": http}
    return {"as_of": at, "stale_after_s": 120, "version": "0", "project": "shop", "engine": engine, "ready": True,
            "flows": {"running": 1}, "problems": [], "notes": [], "flow_list": [{**FLOW, **flow}]}  # fmt: skip


@pytest.fixture
def state(project: Path) -> StateDir:
    return StateDir(project / ".headrace")


@pytest.fixture
def engine(state: StateDir) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the state folder."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(state.root)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_no_engine_ever_ran(headrace: Run, project: Path) -> None:
    ran = headrace("status", project)
    assert (ran.code, ran.out) == (0, "")
    assert "no engine runs" in ran.err
    found = headrace("status", project, "--json").data
    assert found["freshness"] == "no-engine"
    assert (found["flow_list"], found["problems"], found["as_of"]) == ([], [], None)


def test_status_of_a_running_engine(
    headrace: Run, project: Path, state: StateDir, engine: subprocess.Popen[str]
) -> None:
    write_status(state, document(engine.pid))
    ran = headrace("status", project)
    assert ran.code == 0
    head, row = ran.out.splitlines()
    assert dict(zip(head.split("\t"), row.split("\t"), strict=True)) == {
        "flow": "big", "state": "running", "rows in": "1,234", "rows/s": "10.0", "lag": "4.0s / 40 ↑",
        "watermark": "–", "load": "0.25", "late": "–", "dead": "0", "restarts": "0",
    }  # fmt: skip
    assert str(engine.pid) in ran.err
    found = headrace("status", project, "big", "--json").data
    assert found["freshness"] == "live"
    assert found["flow_list"][0]["lag"] == FLOW["lag"]


def test_reasons_are_said(headrace: Run, project: Path, state: StateDir, engine: subprocess.Popen[str]) -> None:
    reason = {"code": "disk-full", "text": "the disk of /x is full", "since": "2026-01-01T00:00:00.000Z"}
    write_status(state, document(engine.pid, state="degraded", reason=reason, held_back_by="visits"))
    out = headrace("status", project).out
    assert "big: the disk of /x is full [disk-full]" in out
    assert "big: watermark held back by visits" in out


def test_an_engine_that_says_nothing_is_stale(
    headrace: Run, project: Path, state: StateDir, engine: subprocess.Popen[str]
) -> None:
    write_status(state, document(engine.pid, age=600))
    assert headrace("status", project, "--json").data["freshness"] == "stale"
    ran = headrace("status", project)
    assert "stale" in ran.err
    assert "running?" in ran.out
    write_status(state, document(engine.pid + 1))
    assert headrace("status", project, "--json").data["freshness"] == "stale", "the words of its predecessor"


def test_an_engine_that_cannot_write_is_asked(state: StateDir, engine: subprocess.Popen[str]) -> None:
    class Board:
        def document(self) -> dict[str, Any]:
            return document(engine.pid, state="degraded")

        def not_ready(self) -> list[Any]:
            return []

    server = StatusServer(HttpSpec(port=0), Board(), None)  # type: ignore[arg-type]
    write_status(state, document(engine.pid, age=600, http=server.address))
    seen = read_status(state)
    server.close()
    assert seen.freshness == "live"
    assert seen.document is not None
    assert seen.document["flow_list"][0]["state"] == "degraded"


def test_after_its_end_the_last_that_is_known_is_shown_as_such(headrace: Run, project: Path, state: StateDir) -> None:
    write_status(state, document(1, age=3600, state="stopped"))
    ran = headrace("status", project)
    assert "no engine runs; last known status" in ran.err
    assert "stopped" in ran.out


def test_a_flow_that_is_not_there(headrace: Run, project: Path) -> None:
    ran = headrace("status", project, "bigg", "--json")
    assert ran.code == 4
    assert ran.error["error"]["code"] == "unknown-flow"
    assert "big" in ran.error["error"]["hint"]


def test_status_needs_no_correct_project_but_its_place(headrace: Run, write_project: Callable[..., Path]) -> None:
    folder = write_project("odd", "project: odd\nstate: ${WHERE:-kept}\nflows: {a: {nonsense: 1}}\n")
    assert headrace("status", folder, "a", "--json").data["freshness"] == "no-engine"
    unknown = write_project("odder", "project: odd\nstate: ${HEADRACE_NOT_SET}\n")
    assert headrace("status", unknown, "--json").error["error"]["code"] == "unknown-variable"


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("state=running", True),
        ("state=failed", False),
        ("lag<5s", True),
        ("lag<4s", False),
        ("lag<=4s", True),
        ("lag<=40", True),
        ("lag<40", False),
        ("batches>=3", True),
        ("batches>3", False),
        ("rows_in >= 1,234", True),
        ("dead_letters=0", True),
        ("caught-up", False),
    ],
)
def test_conditions(text: str, holds: bool) -> None:
    assert condition(text)(FLOW) is holds


@pytest.mark.parametrize("text", ["lag<5s", "lag<=10", "caught-up", "rows_in>=0"])
def test_what_is_not_known_fulfils_nothing(text: str) -> None:
    assert not condition(text)({**FLOW, "lag": None, "caught_up": None, "rows_in": None})


@pytest.mark.parametrize("text", ["", "state=runing", "lag", "lag<fast", "batches>=many", "batches>=3s", "speed>1"])
def test_conditions_that_are_none(text: str) -> None:
    with pytest.raises(ProjectError) as refused:
        condition(text)
    assert refused.value.code == "usage"


def test_wait(headrace: Run, project: Path, state: StateDir, engine: subprocess.Popen[str]) -> None:
    write_status(state, document(engine.pid))
    assert headrace("wait", project, "big", "--for", "batches>=3").code == 0
    met = headrace("wait", "-p", project, "big", "--for", "state=running", "--json").data
    assert met["status"]["name"] == "big"
    late = headrace("wait", project, "big", "--for", "caught-up", "--timeout", "300ms", "--json")
    assert late.code == 124
    assert late.error["error"]["code"] == "wait-timeout"
    error = {"code": "bad-record", "message": "no", "hint": None}
    write_status(state, document(engine.pid, state="failed", last_error=error))
    assert headrace("wait", project, "big", "--for", "caught-up", "--json").error["error"]["code"] == "wait-failed"
    assert headrace("wait", project, "big", "--for", "state=failed").code == 0
    assert headrace("wait", project, "--for", "state=running").code == 2


def test_wait_does_not_take_numbers_of_a_former_engine(headrace: Run, project: Path, state: StateDir) -> None:
    write_status(state, document(1))
    assert headrace("wait", project, "big", "--for", "batches>=3", "--timeout", "200ms").code == 124
    assert headrace("wait", project, "big", "--for", "state=stopped").code == 0


def test_stop(headrace: Run, project: Path, state: StateDir, engine: subprocess.Popen[str]) -> None:
    assert state.holder() == Owner(engine.pid)
    assert headrace("stop", project, "--json").data == {"stopped": True, "pid": engine.pid}
    assert engine.wait(60) == 0
    assert state.holder() is None
    assert headrace("stop", project, "--json").data == {"stopped": False, "pid": None}


def test_stop_gives_up(headrace: Run, project: Path, state: StateDir) -> None:
    deaf = HOLDER.replace("lambda *_: ended.set()", "signal.SIG_IGN")
    with subprocess.Popen([sys.executable, "-c", deaf, str(state.root)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        ran = headrace("stop", project, "--timeout", "300ms", "--json")
        process.kill()
    assert ran.code == 124
    assert ran.error["error"]["code"] == "stop-timeout"


def test_asking_who_holds_a_folder_keeps_no_engine_from_starting(state: StateDir) -> None:
    state.root.mkdir(parents=True)
    (state.root / "engine.lock").touch()
    told = HOLDER.replace("with StateDir", "print('here', flush=True)\ninput()\nwith StateDir")
    with subprocess.Popen(
        [sys.executable, "-c", told, str(state.root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        assert state.holder() is None
        process.stdin.write("go on\n")
        process.stdin.flush()
        while state.holder() is None:
            assert process.poll() is None, "the engine was refused"
        process.kill()


def test_status_is_quick_and_loads_neither_spark_nor_arrow(project: Path) -> None:
    code = (
        "import sys; from headrace.cli.main import main; main(['status', sys.argv[1]]); "
        "sys.exit(bool({'pyspark', 'pyarrow', 'pandas', 'confluent_kafka'} & set(sys.modules)))"
    )
    before = cpu_of_children()
    assert subprocess.run([sys.executable, "-c", code, str(project)], check=False).returncode == 0
    assert cpu_of_children() - before < 5


def test_watch_prints_a_document_per_line(project: Path, state: StateDir, engine: subprocess.Popen[str]) -> None:
    write_status(state, document(engine.pid))
    command = [sys.executable, "-m", "headrace", "status", str(project), "--watch", "--every", "50ms", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        lines = [json.loads(watching.stdout.readline()) for _ in range(3)]
        watching.terminate()
    assert [line["flow_list"][0]["name"] for line in lines] == ["big"] * 3
