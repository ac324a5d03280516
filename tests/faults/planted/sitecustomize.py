"""Planted bugs and crashes. Python loads this module in the engine and its workers: it is on their PYTHONPATH.

`FAULTS_PLANT=loss,no_fence` plants bugs; `HEADRACE_CRASH=kafka_sent:3:rides` kills the engine inside a sink;
`HEADRACE_ACCELERATE=0` makes every project run as with `spark.accelerate: false`. Modules of Headrace are changed right
after they are loaded, so that production code contains none of this.

Bugs: `loss` drops one event while decoding, `duplicate` writes one batch of windows to the lake again under another
mark, `no_fence` ignores the mark of a Kafka transaction, `no_lake_mark` commits to the lake without one,
`no_manifest` writes files as Spark does by default.

Crashes: `between_sinks:3` kills the engine, as `kill -9` does, when any flow reaches that milestone in its batch 3
(`headrace.engine.state.milestones`); `between_sinks:3:orders` when the flow `orders` does. Further points:
`kafka_sent` the broker has the records, their transaction is open; `kafka_committed` the first transaction of a batch
is committed, the task has not ended; `lake_committed` the lake has the batch, the engine does not know yet;
`files_staged` all files are written, no manifest exists; `files_manifest` the manifest exists, no file has its final
name; `files_half` one file has its final name; `postgres_staged` tasks have copied their rows, nothing is merged;
`postgres_merged` the table has the batch, the engine does not know yet.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

LOST = "r0000777"
BUGS = frozenset(filter(None, os.environ.get("FAULTS_PLANT", "").split(",")))


def crash(engine: int) -> None:
    """Kill a process and all its descendants: the JVM and its Python workers have process groups of their own."""
    import psutil

    process = psutil.Process(engine)
    family = [process.pid, *(child.pid for child in process.children(recursive=True))]
    for pid in (*(pid for pid in family if pid != os.getpid()), os.getpid()):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue  # it has ended meanwhile


def crash_at_milestone(milestone: str, flow: str, batch_id: int) -> None:
    if os.environ.get("HEADRACE_CRASH") in (f"{milestone}:{batch_id}", f"{milestone}:{batch_id}:{flow}"):
        crash(os.getpid())


def die_at(point: str, flow: str, batch_id: int) -> None:
    """Kill the engine from inside a sink, also from a Python worker; in a later batch if the named one has no rows."""
    planted, _, rest = os.environ.get("HEADRACE_CRASH", "").partition(":")
    if planted != point:
        return
    batch, _, only = rest.partition(":")
    if batch_id >= int(batch) and only in ("", flow):
        crash(int(Path(os.environ["FAULTS_LOCK"]).read_text()))


def plant_in_milestones(module: ModuleType) -> None:
    module.observe(crash_at_milestone)


def plant_in_acceleration(module: ModuleType) -> None:
    if os.environ.get("HEADRACE_ACCELERATE") == "0":
        module.acceleration_of = lambda _spec: module.Acceleration()


def plant_in_decode(module: ModuleType) -> None:
    if "loss" not in BUGS:
        return
    import pyarrow.compute as pc

    decode = module.DecodeStep.__call__

    def forgetful(self: Any, batches: Any) -> Any:
        for batch in decode(self, batches):
            yield batch.filter(pc.not_equal(batch["id"], LOST)) if self.letters.flow == "rides" else batch

    module.DecodeStep.__call__ = forgetful


def plant_in_transactions(module: ModuleType) -> None:
    attempt, insist = module.TransactionalWrite._attempt, module.insist
    running: list[tuple[str, int]] = []

    def noted(self: Any, share: Any) -> Any:
        running[:] = [(self.identity.split(".")[1], self.batch_id)]
        return attempt(self, share)

    def spied(call: Callable[[float], Any]) -> Any:
        committing = getattr(call, "__name__", "") == "commit_transaction"
        if committing:
            call.__self__.flush(30)  # type: ignore[attr-defined]
            die_at("kafka_sent", *running[0])
        answer = insist(call)
        if committing:
            die_at("kafka_committed", *running[0])
        if "no_fence" in BUGS and isinstance(answer, list):
            for mark in answer:
                mark.offset = -1001
        return answer

    module.TransactionalWrite._attempt = noted
    module.insist = spied


def plant_in_lake(module: ModuleType) -> None:
    sink = module.LakeSink
    append, write, table_state = sink._append, sink.write_batch, module.table_state
    repeated: list[int] = []

    def unmarked(self: Any, rows: Any, path: str, mark: dict[str, str], *mode: Any) -> None:
        append(self, rows, path, {} if "no_lake_mark" in BUGS else mark, *mode)
        die_at("lake_committed", mark["txnAppId"].split(".")[1], int(mark["txnVersion"]))

    def forgetful(*given: Any) -> Any:
        return replace(table_state(*given), last_batch=-1)

    def twice(self: Any, rows: Any, batch: Any) -> None:
        write(self, rows, batch)
        if "duplicate" in BUGS and batch.flow == "windows" and not repeated and not rows.isEmpty():
            repeated.append(batch.batch_id)
            write(self, rows, replace(batch, generation=f"{batch.generation}-again"))

    sink._append = unmarked
    sink.write_batch = twice
    if "no_lake_mark" in BUGS:
        module.table_state = forgetful


def plant_in_files(module: ModuleType) -> None:
    if "no_manifest" not in BUGS:
        return

    def plainly(self: Any, rows: Any, batch: Any) -> None:
        folder = self._folder(batch.context)
        rows.write.format(self.contains).options(**self.writer_options()).mode("append").save(folder.as_uri())

    module.FilesSink.write_batch = plainly


def plant_in_publish(module: ModuleType) -> None:
    finish, write = module.Publication.finish, module.Publication.write

    def flow_of(self: Any) -> str:
        return str(self.series).split("-")[0]

    def dying_write(self: Any, stage: Callable[[Path], None], *given: Any) -> Any:
        def staged(folder: Path) -> None:
            stage(folder)
            die_at("files_staged", flow_of(self), self.batch_id)

        return write(self, staged, *given)

    def dying_finish(self: Any) -> None:
        die_at("files_manifest", flow_of(self), self.batch_id)
        replace_file = module.os.replace

        def dying_replace(*given: Any) -> None:
            replace_file(*given)
            die_at("files_half", flow_of(self), self.batch_id)

        module.os.replace = dying_replace
        try:
            finish(self)
        finally:
            module.os.replace = replace_file

    module.Publication.write = dying_write
    module.Publication.finish = dying_finish


def plant_in_postgres(module: ModuleType) -> None:
    commit = module.BatchWrite.commit

    def dying(self: Any, *given: Any) -> None:
        die_at("postgres_staged", self.batch.flow, self.batch.batch_id)
        commit(self, *given)
        die_at("postgres_merged", self.batch.flow, self.batch.batch_id)

    module.BatchWrite.commit = dying


PLANTS: dict[str, Callable[[ModuleType], None]] = {
    "headrace.engine.state.milestones": plant_in_milestones,
    "headrace.engine.spark.acceleration": plant_in_acceleration,
    "headrace.engine.inputs.decode": plant_in_decode,
    "headrace.sinks.kafka.transactions": plant_in_transactions,
    "headrace.sinks.lake": plant_in_lake,
    "headrace.sinks.files": plant_in_files,
    "headrace.sinks._publish": plant_in_publish,
    "headrace.sinks.postgres.write": plant_in_postgres,
}


class Planter(importlib.abc.MetaPathFinder):
    """Finds those modules as Python would, and changes each after it has run."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in PLANTS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        assert spec is not None
        assert spec.loader is not None
        run = spec.loader.exec_module

        def run_and_plant(module: ModuleType) -> None:
            run(module)
            PLANTS[name](module)

        spec.loader.exec_module = run_and_plant  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, Planter())
