"""A command as a script sees it: arguments in; exit code, stdout and stderr out."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.main import main

GOOD = """\
project: shop
streams:
  orders:
    source: {type: kafka, brokers: ["127.0.0.1:9"], topic: orders}
    format: {type: json, columns: "id bigint, amount double, at timestamp"}
    event_time: at
flows:
  big:
    sql: SELECT id, amount FROM orders WHERE amount > 10
    sinks:
      - {type: kafka, brokers: ["127.0.0.1:9"], topic: big, format: json}
"""


@dataclass(frozen=True)
class Ran:
    """What came of a command."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, Any]:
        """The document on stderr, which is exactly one line."""
        (line,) = self.err.splitlines()
        return json.loads(line)


Run = Callable[..., Ran]


def cpu_of_children() -> float:
    """The processor time of all processes that were started here and have ended: no other load shows in it."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.fixture
def write_project(tmp_path: Path) -> Callable[[str, str], Path]:
    """Make a project with this name and text; its folder."""

    def write(name: str, text: str) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "headrace.yaml").write_text(text)
        return folder

    return write


@pytest.fixture
def project(write_project: Callable[[str, str], Path]) -> Path:
    """The folder of a project without faults."""
    return write_project("shop", GOOD)


@pytest.fixture
def headrace(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process."""

    def run(*arguments: object) -> Ran:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Ran(int(code), captured.out, captured.err)

    return run


@pytest.fixture
def shell() -> Run:
    """Run a command in a process of its own, as a shell does."""

    def run(*arguments: object, cwd: Path | None = None, timeout: float = 120, **environment: str) -> Ran:
        command = [sys.executable, "-c", "import sys; from headrace.cli.main import main; sys.exit(main())"]
        done = subprocess.run(
            [*command, *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=cwd,
            env=os.environ | environment,
            timeout=timeout,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    return run
