"""Runs one variant of one job in a separate process: warm up, then measure. Prints one line of JSON."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.meter import Meter


def headrace(brokers: str, job: str) -> Callable[[str], None]:
    from headrace.engine.flows.flow import FlowStarter
    from headrace.engine.spark.session import start_session
    from headrace.engine.state.state import StateDir
    from headrace.plan.planner import make_plan
    from headrace.project.loader import load

    folder = Path(__file__).parent / "project"
    spec = load(folder).spec.spark
    spark = start_session(spec, "bench", Path(tempfile.mkdtemp()))

    def run(output: str) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            settings = [f"variables.brokers={brokers}", f"variables.output={output}", f"state={scratch}"]
            project = load(folder, overrides=settings)
            plan = make_plan(project, [job])
            query = FlowStarter(project, StateDir(Path(scratch)), spark, until_caught_up=True).start(plan.flows[0])
            query.awaitTermination()

    return run


def handwritten(brokers: str, job: str, module_dir: Path) -> Callable[[str], None]:
    from benchmarks import handwritten as jobs
    from headrace.engine.spark.jars import engine_jars

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = jobs.session([str(jar) for jar in engine_jars()])
    spark.sparkContext.setLogLevel("ERROR")
    return lambda output: jobs.run(spark, job, brokers, output, module_dir)


def main() -> None:
    contestant, job, brokers, module_dir, warm_ups, *outputs = sys.argv[1:]
    meter = Meter()
    run = headrace(brokers, job) if contestant == "headrace" else handwritten(brokers, job, Path(module_dir))
    for output in outputs[: int(warm_ups)]:
        run(output)
    measured = []
    for output in outputs[int(warm_ups) :]:
        cpu, wall = meter.cpu_seconds(), time.monotonic()
        run(output)
        measured.append({"cpu_s": meter.cpu_seconds() - cpu, "wall_s": time.monotonic() - wall})
    meter.close()
    print(json.dumps({"runs": measured, "peak_mb": meter.peak_mb, "load": os.getloadavg()[0]}))


if __name__ == "__main__":
    main()
