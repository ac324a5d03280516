"""A standalone cluster runs the quickstart; it loses executors, a worker and its driver, and each event is there once.

`HEADRACE_SEED=n` repeats a run, `HEADRACE_FAULTS=full` makes it a long one, and with both flows of the scene.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from deltalake import DeltaTable
from tests.faults.scene import FLOWS, Engine, Scene, await_true

from headrace.engine.spark.class_archive import archive_options
from headrace.engine.spark.java_helpers import helpers_jar
from headrace.testing.services import Spark

if TYPE_CHECKING:
    from headrace.testing.services import Kafka

pytestmark = [pytest.mark.cluster, pytest.mark.service]

FULL = os.environ.get("HEADRACE_FAULTS") == "full"
PATIENCE = 600.0  # seconds; on a busy machine an engine may need minutes for its first batch


QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart"


def small_executors() -> dict[str, str]:
    """As drivers do, executors on this machine take Spark's classes from the archive, which fits one class path."""
    return {
        "spark.executor.memory": "600m",
        "spark.executor.extraClassPath": str(helpers_jar()),
        "spark.executor.extraJavaOptions": " ".join(["-XX:TieredStopAtLevel=1", *archive_options()]),
    }


@pytest.fixture(scope="module")
def cluster() -> Iterator[Spark]:
    with Spark(workers=2, cores=1) as started:
        yield started
        processes = [daemon.process() for daemon in started.daemons()]
    assert not any(process.is_running() for process in processes if process is not None)


def test_the_quickstart_runs_on_a_cluster(tmp_path: Path, cluster: Spark) -> None:
    folder = tmp_path / "quickstart"
    shutil.copytree(QUICKSTART, folder, ignore=shutil.ignore_patterns("lake", ".headrace"))
    settings = (
        f"spark.master={cluster.url}",
        f"spark.conf={json.dumps(small_executors())}",
        "streams.bookings.source.count=6000",
    )
    command = [sys.executable, "-m", "headrace", "run", str(folder), "bookings_per_service", "--until-caught-up"]
    command += ["--json", *(word for setting in settings for word in ("--set", setting))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    (flow,) = json.loads(done.stdout.splitlines()[-1])["flows"]
    assert (flow["flow"], flow["rows_in"]) == ("bookings_per_service", 6000)
    assert 30 < flow["dead_letters"] < 90
    assert DeltaTable(str(folder / "lake" / "bookings_per_service")).to_pyarrow_table().num_rows > 3
    assert [app["name"] for app in cluster.status()["completedapps"]] == ["headrace quickstart"]


def executors(cluster: Spark, worker: int) -> list[psutil.Process]:
    """The executors of one worker."""
    process = cluster.worker(worker).process()
    family = process.children(recursive=True) if process is not None else []
    return [one for one in family if _is_executor(one)]


def _is_executor(process: psutil.Process) -> bool:
    try:
        return any("CoarseGrainedExecutorBackend" in word for word in process.cmdline())
    except psutil.NoSuchProcess:
        return False


def await_commits(scene: Scene, engine: Engine) -> None:
    """Until each flow has committed once more."""
    before = scene.commits()

    def all_further() -> bool:
        return all(now > then for now, then in zip(scene.commits(), before, strict=True))

    assert await_true(lambda: all_further() or engine.died(), PATIENCE), engine.tail()
    assert not engine.died(), engine.tail()


def test_every_event_once_whatever_part_of_the_cluster_dies(tmp_path: Path, kafka: Kafka, cluster: Spark) -> None:
    seed = int(os.environ.get("HEADRACE_SEED") or time.time())
    print(f"\nHEADRACE_SEED={seed}")
    chance = random.Random(seed)
    began = time.monotonic()
    deaths: list[str] = []
    flows = FLOWS if FULL else ("windows",)
    scene = Scene(tmp_path, kafka, cluster.url, 2500 if FULL else 1000, small_executors(), flows)
    try:
        generator = scene.generate(100_000 if FULL else 16_000, seed, rate=1000)
        engine = scene.start()
        await_commits(scene, engine)
        for worker in [0, 1] * 4 if FULL else [1]:  # that of the other dies with its worker
            time.sleep(chance.uniform(0, 2))  # the moment itself is what is random
            assert await_true(lambda worker=worker: bool(executors(cluster, worker)), PATIENCE)
            executors(cluster, worker)[0].kill()
            deaths.append(f"executor of worker {worker} after batches {scene.commits()}")
            await_commits(scene, engine)
        cluster.kill_worker(0)
        assert cluster.worker(0).process() is None
        assert cluster.is_running()
        deaths.append(f"worker 0 after batches {scene.commits()}")
        await_commits(scene, engine)
        cluster.start_worker(0)
        engine.kill()
        deaths.append(f"engine after batches {scene.commits()}")
        assert generator.wait(300) == 0
        scene.finish("--set", "defaults.max_records=5000")
        code, verdict = scene.check()
    finally:
        scene.close()
    verdict["figures"] |= {"seed": seed, "deaths": deaths, "seconds": round(time.monotonic() - began)}
    print(json.dumps(verdict, indent=1))
    assert (code, verdict["violations"]) == (0, []), f"HEADRACE_SEED={seed} repeats it"
