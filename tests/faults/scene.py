"""One project under attack: its topics and folders, its engine, the generator and the checker, each a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from tests.faults.planting import planted_environment

if TYPE_CHECKING:
    from headrace.testing.services import Kafka

HERE = Path(__file__).parent
WATERMARK_MS = 60_000

PROJECT = """
project: proof
state: state
defaults: {{trigger: 500ms, max_records: {max_records}}}
spark:
  master: "{master}"
  conf: {conf}
streams:
  events:
    source: {{type: kafka, brokers: "{brokers}", topic: {source}}}
    format: {{type: json, columns: "id string, k string, n bigint, amount bigint, ts bigint"}}
    event_time: {{column: ts, unit: ms, watermark: 60s}}
flows:
  rides:
    sql: SELECT id, k, n, amount, ts FROM events
    sinks:
      - {{type: kafka, brokers: "{brokers}", topic: {rides}, key: k, delivery: exactly_once}}
      - {{type: lake, path: lake/rides, compact_every: 7}}
      - {{type: files, path: out/rides, contains: json}}
  windows:
    sql: |
      SELECT window.start AS since, k, count(*) AS n, sum(amount) AS total
      FROM events GROUP BY window(ts, '10 seconds'), k
    sinks:
      - {{type: files, path: out/windows, contains: json}}
      - {{type: lake, path: lake/windows}}
      - {{type: kafka, brokers: "{brokers}", topic: {windows}, key: k, delivery: exactly_once}}
"""
FLOWS = ("rides", "windows")
# a JVM that lives for seconds is done sooner without its second compiler
SHORT_LIVED = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}


def await_true(condition: Callable[[], bool], seconds: float, pause: float = 0.2) -> bool:
    """Whether the condition came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True


@dataclass
class Engine:
    """One life of `headrace run`."""

    process: subprocess.Popen[bytes]
    log: Path
    family: dict[int, psutil.Process] = field(default_factory=dict)

    def look(self) -> list[psutil.Process]:
        """The process and all that it started, remembered for `orphans`."""
        try:
            own = psutil.Process(self.process.pid)
            found = [own, *own.children(recursive=True)]
        except psutil.NoSuchProcess:
            found = []
        self.family |= {one.pid: one for one in found}
        return found

    def kill(self, alone: bool = False) -> None:
        """kill -9: all of it, or only the Python process, whose JVM and workers then end by themselves."""
        family = self.look()
        for one in family[:1] if alone else family:
            try:
                one.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue
        self.process.wait(120)

    def died(self) -> bool:
        """Whether it is gone."""
        if self.process.poll() is None:
            self.look()
            return False
        return True

    def orphans(self) -> list[int]:
        """What it has left behind and is still there."""
        return [pid for pid, one in self.family.items() if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]

    def tail(self) -> str:
        """The last it said."""
        return self.log.read_text(errors="replace")[-3000:]


@dataclass
class Scene:
    """Where all of it happens."""

    folder: Path
    kafka: Kafka
    master: str = "local[2]"
    max_records: int = 1000
    conf: Mapping[str, str] = field(default_factory=dict)
    flows: Sequence[str] = FLOWS
    lives: list[Engine] = field(default_factory=list)

    def __post_init__(self) -> None:
        mark = uuid.uuid4().hex[:8]
        self.source, self.topics = f"in-{mark}", {flow: f"{flow}-{mark}" for flow in FLOWS}
        for topic in (self.source, *self.topics.values()):
            self.kafka.create_topic(topic, 4)
        self.folder.mkdir(parents=True, exist_ok=True)
        local = self.folder / "local"
        local.mkdir()
        (self.folder / "headrace.yaml").write_text(
            PROJECT.format(
                brokers=self.kafka.address,
                source=self.source,
                master=self.master,
                max_records=self.max_records,
                conf=json.dumps({"spark.local.dir": str(local), **SHORT_LIVED, **self.conf}),
                **self.topics,
            )
        )
        (self.folder / "scene.json").write_text(json.dumps(self.document(), indent=1))

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def log(self) -> Path:
        return self.folder / "acknowledged.jsonl"

    def document(self) -> dict[str, Any]:
        """What the checker is told."""
        places = {
            flow: {
                "topic": topic,
                "lake": str(self.folder / "lake" / flow),
                "files": str(self.folder / "out" / flow),
            }
            for flow, topic in self.topics.items()
            if flow in self.flows
        }
        return {
            "brokers": self.kafka.address,
            "log": str(self.log),
            "state": str(self.state),
            "watermark_ms": WATERMARK_MS,
            "flows": places,
        }

    def generate(self, count: int, seed: int, rate: float | None = None) -> subprocess.Popen[bytes]:
        """Start the generator."""
        command = [sys.executable, str(HERE / "generator.py"), self.kafka.address, self.source, str(self.log)]
        command += ["--count", str(count), "--seed", str(seed), *(["--rate", str(rate)] if rate else [])]
        return subprocess.Popen(command)

    def start(self, *arguments: str, crash: str | None = None, plant: str | None = None) -> Engine:
        """Start the engine, perhaps with something planted."""
        env = planted_environment(crash, FAULTS_LOCK=str(self.state / "engine.lock"))
        env |= {"FAULTS_PLANT": plant} if plant else {}
        log = self.folder / f"life-{len(self.lives):02d}.log"
        with log.open("wb") as output:
            command = [sys.executable, "-m", "headrace", "run", str(self.folder), *self.flows, *arguments]
            process = subprocess.Popen(command, env=env, stdout=output, stderr=output, start_new_session=True)
        engine = Engine(process, log)
        self.lives.append(engine)
        return engine

    def finish(self, *arguments: str, plant: str | None = None, seconds: float = 900) -> None:
        """One more life, in which the engine catches up and ends by itself."""
        engine = self.start("--until-caught-up", *arguments, plant=plant)
        assert await_true(engine.died, seconds), f"did not catch up: {engine.tail()}"
        assert engine.process.returncode == 0, engine.tail()

    def newest(self, flow: str, kind: str) -> int:
        """The newest batch in Spark's log of `offsets` or `commits`, -1 before the first."""
        try:
            generation = (self.state / "flows" / flow / "current").read_text().strip()
            names = os.listdir(self.state / "flows" / flow / generation / "checkpoint" / kind)
        except FileNotFoundError:
            return -1
        return max((int(name) for name in names if name.isdecimal()), default=-1)

    def commits(self) -> tuple[int, ...]:
        """The newest commit of each flow."""
        return tuple(self.newest(flow, "commits") for flow in self.flows)

    def check(self) -> tuple[int, dict[str, Any]]:
        """The checker's exit code and verdict."""
        command = [sys.executable, str(HERE / "checker.py"), str(self.folder / "scene.json")]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert done.stdout, done.stderr
        verdict: dict[str, Any] = json.loads(done.stdout)
        return done.returncode, verdict

    def close(self) -> None:
        """End what still runs, and see that nothing is left."""
        for engine in self.lives:
            if engine.process.poll() is None:
                engine.kill()
        left = [pid for engine in self.lives for pid in engine.orphans()]
        assert await_true(lambda: not any(engine.orphans() for engine in self.lives), 60), f"still running: {left}"
