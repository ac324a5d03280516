"""Python processes that are forked from one that has loaded their libraries."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pyarrow as pa
import pytest
from tests.serve.nodekit import until

from headrace.engine.spark import fork_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# a module whose parent is the server, with no libraries to load
LIGHT = """
from headrace.engine.spark import fork_server
from headrace.engine.spark import workers
workers.LIBRARIES = ()
fork_server.main({place!r})
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    place = tmp_path / "python.sock"
    with subprocess.Popen([sys.executable, "-c", LIGHT.format(place=str(place))], stdin=subprocess.PIPE) as process:
        until(place.exists)
        yield process
        process.kill()


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., subprocess.Popen[str]]:
    """Starts `-m MODULE ARGUMENTS` as Spark would."""
    (tmp_path / "about.py").write_text(
        "import os, sys\n"
        "told = os.getppid(), os.getcwd(), os.environ.get('COLOUR'), __name__, *sys.argv[1:], sys.stdin.read()\n"
        "print(*told, sep='|')\n"
        "sys.exit(7)\n"
    )
    (tmp_path / "endless.py").write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n")
    (tmp_path / "wrong.py").write_text("raise ValueError('so it is')\n")
    client = [sys.executable, "-IS", str(Path(fork_server.__file__).with_name("fork_client.py"))]

    def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return subprocess.Popen(
            [*client, str(tmp_path / "python.sock"), *arguments],
            env={**os.environ, "PYTHONPATH": str(tmp_path), **environment}, cwd=tmp_path.parent, text=True, **pipes,
        )  # fmt: skip

    return start


Asked = Callable[..., subprocess.Popen[str]]
Server = subprocess.Popen[bytes]


def test_it_runs_with_the_streams_environment_and_folder_of_who_asked(
    server: Server, asked: Asked, tmp_path: Path
) -> None:
    for colour in ("red", "blue"):
        process = asked("-m", "about", "a b", COLOUR=colour)
        told, _ = process.communicate("what is said", timeout=30)
        expected = [str(server.pid), str(tmp_path.parent), colour, "__main__", "a b", "what is said"]
        assert told.strip().split("|") == expected
        assert process.returncode == 7


def test_it_ends_when_who_asked_is_ended(server: Server, asked: Asked) -> None:
    process = asked("-m", "endless")
    assert process.stdout is not None
    forked = psutil.Process(int(process.stdout.readline()))
    assert forked.ppid() == server.pid
    process.send_signal(signal.SIGTERM)
    until(lambda: not forked.is_running())
    process.communicate()


def test_both_may_end_at_once(server: Server, asked: Asked) -> None:
    """Spark closes its connection to a process and ends what it has started, at the same time."""
    for _ in range(10):
        process = asked("-m", "endless")
        assert process.stdout is not None
        forked = int(process.stdout.readline())
        server.send_signal(signal.SIGSTOP)  # so that it is told of both together
        os.kill(forked, signal.SIGKILL)
        process.kill()
        process.communicate(timeout=30)
        server.send_signal(signal.SIGCONT)
    assert asked("-m", "about").communicate("", timeout=30)[0].split("|")[0] == str(server.pid)


def test_who_asked_ends_when_it_is_killed(server: Server, asked: Asked) -> None:
    process = asked("-m", "endless")
    assert process.stdout is not None
    os.kill(int(process.stdout.readline()), signal.SIGKILL)
    process.communicate(timeout=30)
    assert process.returncode != 0


def test_an_error_is_told_as_python_tells_it(server: Server, asked: Asked) -> None:
    process = asked("-m", "wrong")
    _, told = process.communicate(timeout=30)
    assert "ValueError: so it is" in told
    assert process.returncode == 1


def test_without_a_server_and_for_anything_else_it_is_python_itself(asked: Asked) -> None:
    process = asked("-m", "about")
    told, _ = process.communicate("", timeout=30)
    assert told.split("|")[0] == str(os.getpid())
    process = asked("-c", "print(1 + 1)")
    assert process.communicate(timeout=30)[0].strip() == "2"


def test_it_ends_with_who_started_it(server: Server) -> None:
    assert server.stdin is not None
    server.stdin.close()
    assert server.wait(30) == 0


def parents(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import os

    import psutil

    names = [" ".join(one.cmdline()) for one in psutil.Process(os.getpid()).parents()]
    yield pa.record_batch([names], ["command"])


@pytest.mark.usefixtures("accelerated")
@pytest.mark.spark
def test_workers_come_from_it(spark: SparkSession) -> None:
    found = [row.command for row in spark.range(0, 1, 1, 1).mapInArrow(parents, "command string").collect()]
    assert any("headrace.engine.spark.fork_server" in command for command in found)
