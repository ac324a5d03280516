"""The engine killed with -9 at random moments and at every named point: each event once, each window right.

`HEADRACE_SEED=n` repeats a run, `HEADRACE_FAULTS=full` makes it a long one (200,000 events, 24 deaths). The small one
dies where no other test in here does, and at one place that the seed chooses.
"""

from __future__ import annotations

import json
import os
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.faults.scene import Engine, Scene, await_true
from tests.system.conftest import RunProject

from headrace.engine.state.state import StateDir

if TYPE_CHECKING:
    from headrace.testing.services import Kafka

pytestmark = [pytest.mark.spark, pytest.mark.service]

FULL = os.environ.get("HEADRACE_FAULTS") == "full"
NAMED = ("before_batch", "between_sinks", "after_sinks", "after_commit")
HERE_ONLY = ("before_batch", "after_commit")
"""The others are met in every run in tests/system/test_object_state.py and test_beside_crashes.py."""
INSIDE = ("kafka_sent", "kafka_committed", "lake_committed", "files_staged", "files_manifest", "files_half")
PATIENCE = 600.0  # seconds; on a busy machine an engine may need minutes for its first batch


@dataclass(frozen=True)
class Death:
    """How one life ends: at a point of a flow, or so many seconds after the start or the first new commit."""

    point: str | None = None
    flow: str = "rides"
    early: bool = False
    seconds: float = 0.0
    alone: bool = False


def schedule(chance: random.Random, full: bool) -> list[Death]:
    """The deaths to die, in random order, the same for the same seed."""
    flows = ("rides", "windows")
    if full:
        deaths = [Death(point, flow) for point in NAMED for flow in flows]
        deaths += [Death(point, chance.choice(flows)) for point in INSIDE]
        deaths += [Death(seconds=chance.uniform(0, 5), alone=number % 3 == 0) for number in range(8)]
        deaths += [Death(early=True, seconds=chance.uniform(4, 15)) for _ in range(2)]
    else:
        deaths = [Death(point, chance.choice(flows)) for point in HERE_ONLY]
        moment = Death(seconds=chance.uniform(0, 3), alone=chance.random() < 0.5)
        deaths += [chance.choice([moment, Death(chance.choice(INSIDE))])]
    chance.shuffle(deaths)
    return deaths


def die(scene: Scene, death: Death, chance: random.Random) -> Engine:
    """Live through one life."""
    if death.point is None:
        engine, before = scene.start(), scene.commits()
        if not death.early:
            assert await_true(lambda: scene.commits() > before or engine.died(), PATIENCE), engine.tail()
        time.sleep(death.seconds)  # the moment itself is what is random
        assert not engine.died(), engine.tail()
        engine.kill(death.alone)
        return engine
    # a batch that is in flight is run again first: sometimes die in that, sometimes in the next
    batch = scene.newest(death.flow, "offsets") + chance.randrange(2)
    batch = max(batch, scene.newest(death.flow, "commits") + 1)
    if death.point == "after_commit":
        engine = scene.start()
        done = lambda: scene.newest(death.flow, "commits") >= batch  # noqa: E731
        assert await_true(lambda: done() or engine.process.poll() is not None, PATIENCE, 0.001), engine.tail()
        engine.kill()
        return engine
    engine = scene.start(crash=f"{death.point}:{batch}:{death.flow}")
    assert await_true(engine.died, PATIENCE), f"{death} was not reached: {engine.tail()}"
    assert engine.process.returncode == -9, engine.tail()
    begun, done = (scene.newest(death.flow, kind) for kind in ("offsets", "commits"))
    assert begun == done + 1, f"{death}: no batch was in flight"
    assert begun == batch or death.point in INSIDE, f"{death}: not in the batch it was meant for"
    return engine


def catch_up(scene: Scene, run_project: RunProject) -> None:
    """The last life: that of a process of its own, or, as it dies no more, one in the session that tests share."""
    if FULL:
        scene.finish("--set", "defaults.max_records=5000")
    else:
        with StateDir(scene.state).lock():
            run_project(scene.folder, defaults__max_records=5000)


def test_every_event_once_whatever_the_moment_of_death(tmp_path: Path, kafka: Kafka, run_project: RunProject) -> None:
    seed = int(os.environ.get("HEADRACE_SEED") or time.time())
    count = 200_000 if FULL else 20_000
    print(f"\nHEADRACE_SEED={seed}")
    chance = random.Random(seed)
    began = time.monotonic()
    # small batches: none of the flows may have read all before its last death
    scene = Scene(tmp_path, kafka, max_records=2500 if FULL else 500)
    told: list[dict[str, Any]] = []
    try:
        generator = scene.generate(count, seed, rate=1000 if FULL else 2000)
        for death in schedule(chance, FULL):
            engine = die(scene, death, chance)
            told.append({**vars(death), "at": round(time.monotonic() - began, 1), "commits": scene.commits()})
            print(json.dumps(told[-1]), engine.log.name, flush=True)
        assert generator.wait(300) == 0
        catch_up(scene, run_project)
        code, verdict = scene.check()
    finally:
        scene.close()
    verdict["figures"] |= {"seed": seed, "deaths": len(told), "seconds": round(time.monotonic() - began)}
    print(json.dumps(verdict, indent=1))
    assert (code, verdict["violations"]) == (0, []), f"HEADRACE_SEED={seed} repeats it"
