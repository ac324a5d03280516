"""The capture that `headrace run` keeps alive: told about, started again, ended with it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
from tests.serve.nodekit import until

from headrace.cli.projects._capturing import Capturing
from headrace.project.loader import load
from headrace.project.project_ref import ProjectRef

pytestmark = pytest.mark.service


def test_a_capture_that_dies_is_told_and_started_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = "{source: {type: push, columns: 'id bigint', key: [id]}}"
    (tmp_path / "headrace.yaml").write_text(f"project: shop\ntables: {{orders: {table}}}\n")
    notes: list[str] = []
    with Capturing(ProjectRef(tmp_path), load(tmp_path), tmp_path / "logs") as capturing:
        capturing.note = lambda about, text: notes.append(f"{about}: {text}")

        def followed() -> bool:
            capturing.tend()
            return "tables are captured: orders" in capsys.readouterr().err

        until(followed)
        first = capturing.child.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        until(followed)
        last = psutil.Process(capturing.child.pid)
        assert last.pid != first
    assert not last.is_running()
    assert [note.split(",")[0] for note in notes] == [
        "tables: tables are not captured: the capture was ended by SIGKILL",
        "tables: tables are captured again",
    ]
