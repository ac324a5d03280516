"""Folders of processes that were killed are removed by the next one; those of processes that live are not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.engine.spark import scratch
from headrace.engine.spark.session import settings
from headrace.project.model import SparkSpec

# takes a folder, puts something into it, and waits
OWNER = """
import sys, time
from headrace.engine.spark.scratch import scratch_folder
folder = scratch_folder()
(folder / "blockmgr-1").mkdir()
(folder / "blockmgr-1" / "shuffle").write_text("x")
print(folder, flush=True)
sys.stdin.readline()
"""
ENGINE = """
import sys
from pathlib import Path
from headrace.engine.spark.scratch import scratch_folder
from headrace.engine.spark.session import start_session
from headrace.project.model import SparkSpec
spark = start_session(SparkSpec(master="local[1]"), "scratch", Path(sys.argv[1]))
spark.range(1000).repartition(2).count()
print(scratch_folder(), spark.sparkContext._gateway.proc.pid, flush=True)
sys.stdin.readline()
"""


def start(code: str, tmp: Path, *arguments: str) -> tuple[subprocess.Popen[str], list[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp)},
        start_new_session=True,
    )
    assert process.stdout is not None
    return process, process.stdout.readline().split()


def await_gone(pid: int) -> None:
    deadline = time.monotonic() + 60
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def kill(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)


def test_the_dead_are_cleaned_up_after_and_the_living_are_left_alone(tmp_path: Path) -> None:
    dead, (dead_folder,) = start(OWNER, tmp_path)
    living, (living_folder,) = start(OWNER, tmp_path)
    assert Path(dead_folder).parent == Path(living_folder).parent == tmp_path / f"headrace-{os.getuid()}"
    kill(dead)
    assert Path(dead_folder, "blockmgr-1", "shuffle").exists(), "that is the fault"
    scratch.sweep(Path(dead_folder).parent)
    assert not Path(dead_folder).exists()
    assert Path(living_folder, "blockmgr-1", "shuffle").exists()
    living.communicate("\n", timeout=10)
    assert list(Path(living_folder).parent.iterdir()) == [], "who ends by itself leaves nothing"


def test_a_jvm_that_outlives_its_engine_keeps_its_folder(tmp_path: Path) -> None:
    dead, (given,) = start(OWNER, tmp_path)
    folder = Path(given)
    command = [sys.executable, "-c", "print('here', flush=True); input()", f"-Djava.io.tmpdir={folder}"]
    jvm = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert jvm.stdout is not None
    assert jvm.stdout.readline() == b"here\n"  # before that the system may not yet tell its command line
    scratch.record_jvm(folder, jvm.pid)
    kill(dead)
    scratch.sweep(folder.parent)
    assert folder.exists()
    jvm.communicate(b"\n", timeout=10)
    scratch.record_jvm(folder, os.getpid())  # a process that has got its number
    scratch.sweep(folder.parent)
    assert not folder.exists()


def test_a_folder_that_others_could_have_made_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    root = tmp_path / f"headrace-{os.getuid()}"
    root.mkdir()
    root.chmod(0o777)
    assert scratch.scratch_folder.__wrapped__() is None
    root.chmod(0o700)
    root.rmdir()
    root.symlink_to(tmp_path)
    assert scratch.scratch_folder.__wrapped__() is None


def test_the_project_may_choose_another_place() -> None:
    made = settings(SparkSpec(), Path("/log/engine.log"), [], Path("/tmp/mine"))
    assert made["spark.local.dir"] == "/tmp/mine"
    assert "-Djava.io.tmpdir=/tmp/mine" in made["spark.driver.extraJavaOptions"]
    chosen = SparkSpec(conf={"spark.local.dir": "/big"})
    assert settings(chosen, Path("/log/engine.log"), [], Path("/tmp/mine"))["spark.local.dir"] == "/big"


@pytest.mark.spark
def test_nothing_of_a_killed_spark_stays(spark: Any, tmp_path: Path) -> None:
    """Killed with its JVM, so that no shutdown hook runs."""
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    process, (folder, jvm) = start(ENGINE, tmp, str(tmp_path / "logs"))
    kill(process)
    await_gone(int(jvm))
    assert [one.name for one in Path(folder).iterdir() if one.name.startswith(("blockmgr-", "spark-"))]
    outside = [one for one in tmp.iterdir() if one != Path(folder).parent]
    scratch.sweep(Path(folder).parent)
    assert not Path(folder).exists()
    assert outside == [], "all of it was in the folder"
