"""stop, start and restart of single flows, as a script sees them."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from headrace.engine.state.orders import Orders, give_order, last_order
from headrace.engine.state.state import StateDir
from headrace.engine.state.status_file import write_status

from .conftest import Run
from .test_status import document, engine, state

__all__ = ["engine", "state"]


class Obedient:
    """Does to the status of flow `big` what orders say, as an engine would."""

    def __init__(self, state: StateDir, pid: int, **flow: Any) -> None:
        self._state, self._pid, self._flow = state, pid, {"state": "running", "stop": None, **flow}
        self.fails = False
        self._write()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join(10)

    def _run(self) -> None:
        orders = Orders(self._state)
        while not self._ended.wait(0.02):
            for order in orders.news(["big"]).values():
                stop = {"by": order.by, "at": order.at} if order.want == "stopped" else None
                now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
                state = "stopped" if stop else "failed" if self.fails else "starting"
                self._flow |= {"state": state, "stop": stop, "since": now}
            self._write()

    def _write(self) -> None:
        write_status(self._state, document(self._pid, **self._flow))


@pytest.fixture
def obedient(state: StateDir, engine: subprocess.Popen[str]) -> Iterator[Obedient]:
    one = Obedient(state, engine.pid)
    yield one
    one.close()


def test_stop_start_and_restart(headrace: Run, project: Path, obedient: Obedient, state: StateDir) -> None:
    stopped = headrace("stop", project, "big", "--json")
    assert stopped.code == 0
    (flow,) = stopped.data["flows"]
    assert (flow["name"], flow["state"]) == ("big", "stopped")
    assert state.holder() is not None, "the engine goes on"
    shown = headrace("status", project).out
    assert f"requested by {flow['stop']['by']}" in shown
    assert "headrace start big" in shown
    again = headrace("stop", "-p", project, "big", "--json")
    assert (again.code, again.error["error"]["code"]) == (5, "already-stopped")
    assert headrace("start", project, "big").err == "big is starting\n"
    running = headrace("start", project, "big", "--json")
    assert (running.code, running.error["error"]["code"]) == (5, "already-running")
    assert headrace("restart", project, "big", "--json").data["flows"][0]["state"] == "starting"
    order = last_order(state, "big")
    assert order is not None
    assert order.want == "running"


def test_a_start_that_fails_again_is_said(headrace: Run, project: Path, obedient: Obedient) -> None:
    obedient.fails = True
    ran = headrace("restart", project, "big", "--json")
    assert ran.code == 1
    assert ran.error["error"]["code"] == "start-failed"


def test_who_is_not_there_gets_no_orders(
    headrace: Run, project: Path, state: StateDir, engine: subprocess.Popen[str]
) -> None:
    unknown = headrace("stop", project, "bigg", "--json")
    assert (unknown.code, unknown.error["error"]["code"]) == (4, "unknown-flow")
    assert "'big'" in unknown.error["error"]["hint"]
    write_status(state, {**document(engine.pid), "flow_list": []})
    assert headrace("stop", project, "big", "--json").error["error"]["code"] == "flow-not-run"
    write_status(state, document(engine.pid, age=600))
    began = time.monotonic()
    stale = headrace("stop", project, "big", "--timeout", "300ms", "--json")
    assert (stale.code, stale.error["error"]["code"]) == (124, "order-timeout")
    assert time.monotonic() - began < 60
    assert last_order(state, "big") is None
    assert headrace("start", project, "--json").error["error"]["code"] == "usage"
    assert headrace("restart", project, "--json").error["error"]["code"] == "usage"


def test_without_an_engine(headrace: Run, project: Path, state: StateDir) -> None:
    for command in ("stop", "start", "restart"):
        ran = headrace(command, project, "big", "--json")
        assert (ran.code, ran.error["error"]["code"]) == (4, "no-engine")
    give_order(state, "big", "stopped")
    assert "the next one will run big" in headrace("start", project, "big").err
    order = last_order(state, "big")
    assert order is not None
    assert order.want == "running"
