"""A standalone cluster that loses executors, a worker and its driver while flows run: each event once.

`HEADRACE_SEED=n` repeats a run, `HEADRACE_FAULTS=full` makes it a long one.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from tests.faults.scene import Engine, Scene, await_true

from headrace.testing.services import Spark

if TYPE_CHECKING:
    from headrace.testing.services import Kafka

pytestmark = [pytest.mark.cluster, pytest.mark.service]

FULL = os.environ.get("HEADRACE_FAULTS") == "full"
PATIENCE = 600.0  # seconds; on a busy machine an engine may need minutes for its first batch


@pytest.fixture
def cluster() -> Iterator[Spark]:
    with Spark(workers=2, cores=1) as started:
        yield started


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
    conf = {"spark.executor.memory": "600m", "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    scene = Scene(tmp_path, kafka, cluster.url, 2500 if FULL else 1000, conf)
    try:
        generator = scene.generate(100_000 if FULL else 12_000, seed, rate=1000)
        engine = scene.start()
        await_commits(scene, engine)
        for worker in [0, 1] * (4 if FULL else 1):
            time.sleep(chance.uniform(0, 2))  # the moment itself is what is random
            assert await_true(lambda worker=worker: bool(executors(cluster, worker)), PATIENCE)
            executors(cluster, worker)[0].kill()
            deaths.append(f"executor of worker {worker} after batches {scene.commits()}")
            await_commits(scene, engine)
        cluster.kill_worker(0)
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
