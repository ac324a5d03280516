"""`headrace doctor` and `headrace version`: what is here, what is wrong, how to mend it."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace import __version__
from headrace.cli.environment import _checks, doctor
from headrace.core.component import Component
from headrace.core.context import Context
from headrace.project.loader import load

Run = Callable[..., Any]
Write = Callable[[str, str], Path]


@pytest.fixture(autouse=True)
def _outside_any_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _by_name(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {check["check"]: check for check in document["checks"]}


def test_this_machine(headrace: Run) -> None:
    ran = headrace("doctor", "--json")
    found = _by_name(ran.data)
    assert {"python", "java", "pyspark", "libraries", "jars", "memory", "loopback", "state", "disk"} <= found.keys()
    assert all(check.keys() == {"check", "state", "detail", "fix"} for check in ran.data["checks"])
    assert ran.data["ok"] == (ran.code == 0)
    assert found["pyspark"]["detail"] == "version 4.2.0"
    assert found["python"]["state"] == found["loopback"]["state"] == found["state"]["state"] == "ok"


def test_without_java_and_jars_it_says_how_to_get_them(tmp_path: Path, shell: Run) -> None:
    ran = shell("doctor", cwd=tmp_path, JAVA_HOME=str(tmp_path / "none"), HEADRACE_JARS=str(tmp_path / "jars"))
    assert ran.code == 1
    assert "FAIL  java: no java in" in ran.out
    assert "fix: install Java 17" in ran.out
    assert "fix: run: headrace jars" in ran.out


def test_little_memory_warns_and_little_disk_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = psutil.virtual_memory()._replace(available=2**29)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: usage)
    monkeypatch.setattr(_checks.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 2**28})())
    found = {result.check: result for result in _checks.environment(tmp_path)}
    assert (found["memory"].state, found["disk"].state) == ("warn", "fail")
    assert found["disk"].fix


def test_a_state_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = {result.check: result for result in _checks.environment(tmp_path / "file")}
    assert found["state"].state == "fail"


def test_a_project_that_cannot_be_read_fails_with_all_its_errors(write_project: Write, headrace: Run) -> None:
    folder = write_project("bad", "project: x\nstrems: {}\nflws: {}\n")
    ran = headrace("doctor", folder)
    assert ran.code == 1
    assert ran.out.count("[unknown-key]") == 2
    assert headrace("doctor", folder.parent / "nowhere").code == 4


def test_a_broker_that_is_not_there(project: Path, shell: Run) -> None:
    ran = shell("doctor", project, "--timeout", "20s", "--json")
    assert ran.code == 1
    stream = _by_name(ran.data)["stream orders"]
    assert stream["state"] == "fail"
    assert stream["fix"]
    assert ran.err == ""


def _refuse(_sink: Component, _context: Context) -> None:
    raise RuntimeError("no idea")


def test_a_check_that_hangs_or_crashes_does_not_hide_the_others(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, never says a word
        brokers = f"streams.orders.source.brokers=['127.0.0.1:{silent.getsockname()[1]}']"
        loaded = load(project, overrides=[brokers])
        monkeypatch.setattr(type(loaded.spec.flows["big"].sinks[0]), "check", _refuse)
        hanging, crashing = doctor.component_checks(loaded, timedelta(milliseconds=300))
    assert (hanging.check, hanging.state, hanging.detail) == ("stream orders", "fail", "no answer within 0.3 s")
    assert (crashing.state, crashing.detail) == ("fail", "RuntimeError: no idea")


def test_a_timeout_without_a_unit_is_wrong_usage(project: Path, headrace: Run) -> None:
    assert headrace("doctor", project, "--timeout", "15").code == 2


def test_without_a_project_it_loads_no_kind_since_a_library_may_be_what_is_broken() -> None:
    script = (
        "import sys; from headrace.cli.main import main; main(['doctor']);"
        "print(sorted(sys.modules.keys() & {'pyspark', 'pyarrow', 'yaml', 'sqlglot'}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "[]"


def test_version(headrace: Run) -> None:
    found = headrace("version", "--json").data
    assert found.keys() == {"headrace", "python", "pyspark", "java"}
    assert (found["headrace"], found["pyspark"]) == (__version__, "4.2.0")
    assert headrace("version").out.splitlines()[0] == f"headrace  {__version__}"


def test_version_without_java(headrace: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert headrace("version", "--json").data["java"] is None
