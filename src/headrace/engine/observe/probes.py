"""Measurements every few seconds, independent of batches: lag, dead letters and late rows."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow.compute as pc

from headrace.core.context import Context
from headrace.core.errors import ProjectError
from headrace.core.files.state_files import StatePath, in_order
from headrace.engine.inputs.backfill import is_pending
from headrace.engine.inputs.heartbeat import due, write_heartbeat
from headrace.engine.letters.dead_letter_audit import AuditLog
from headrace.engine.positions.lag import FlowLag, LagProbe
from headrace.engine.state.parquet_files import read_tables, rows_in
from headrace.engine.state.state import StateDir
from headrace.engine.supervise.background import Notes
from headrace.engine.supervise.flow_run import FlowRun
from headrace.plan.model import FlowPlan

_MAX_REASONS = 50
_MEASUREMENTS_PER_MINUTE = 13


@dataclass(frozen=True)
class MeasuredLag:
    """The lag of a flow, and when it was measured."""

    lag: FlowLag
    at: datetime

    def of_stream(self, name: str) -> int | None:
        """Unread records of one stream."""
        parts = [split.lag for split in self.lag.splits.get(name, ())]
        known = [part for part in parts if part is not None]
        return sum(known) if parts and len(known) == len(parts) else None


class LagMeter:
    """Measures the lag of each flow, and writes heartbeats for idle streams. Connections stay open."""

    def __init__(self, project: str, context: Context, state: StateDir, runs: Sequence[FlowRun], notes: Notes) -> None:
        self._project, self._context, self._state = project, context, state
        self._runs, self._notes = runs, notes
        self._probes: dict[str, tuple[FlowPlan, LagProbe]] = {}
        self.measured: dict[str, MeasuredLag] = {}
        """By the name of the run, because candidates are measured too."""

    def measure(self) -> None:
        """Measure all flows once. A lag that cannot be measured is removed: an old value would be wrong."""
        runs = [*self._runs, *(run.switch.candidate for run in list(self._runs) if run.switch is not None)]
        for run in runs:
            measured = None if run.done else self._measure(run)
            if measured is None:
                self.measured.pop(run.name, None)
            else:
                self.measured[run.name] = measured
            if run.state == "running":
                self._write_heartbeats(run, measured)
        for ended in self.measured.keys() - {run.name for run in runs}:
            del self.measured[ended]

    def close(self) -> None:
        for _plan, probe in self._probes.values():
            probe.close()

    def _measure(self, run: FlowRun) -> MeasuredLag | None:
        name, state = run.name, run.starter.state if run.starter else self._state
        try:
            lag = self._probe(run).measure(state.generations(run.plan.name).current())
        except ProjectError as error:
            if run.state != "degraded":  # otherwise the flow itself reports it
                self._notes.add(f"lag of {name}", error.message)
            if name in self._probes:
                self._probes.pop(name)[1].close()  # a client may not recover from the failure
            return None
        return MeasuredLag(lag, datetime.now(UTC))

    def _probe(self, run: FlowRun) -> LagProbe:
        plan, probe = self._probes.get(run.name, (None, None))
        if probe is None or plan is not run.plan:
            if probe is not None:  # the flow has a new plan
                probe.close()
            probe = LagProbe(self._project, run.plan, self._context)
            self._probes[run.name] = run.plan, probe
        return probe

    def _write_heartbeats(self, run: FlowRun, measured: MeasuredLag | None) -> None:
        """Advance the watermark of streams that have been idle longer than their `idle` setting."""
        if run.is_candidate or is_pending(self._state.generations(run.plan.name).current()):
            return  # the records of the history are older than a heartbeat
        now = datetime.now(UTC)
        for stream in run.plan.streams():
            idle = stream.event_time.idle if stream.event_time else None
            counters = run.counters.streams.get(stream.name)
            if idle is None or counters is None:
                continue
            unread = measured.of_stream(stream.name) if measured else None
            caught_up = unread == 0 if unread is not None else bool(run.caught_up)
            time_ms = due(now, counters.last_row_at or run.since, caught_up, idle)
            if time_ms is not None:
                write_heartbeat(self._state, run.plan.name, stream.name, time_ms)


class ClosedLetterCounter:
    """Counts the dead letters of each flow that were replayed or discarded. Reads the history when it has changed."""

    def __init__(self, folder: StatePath) -> None:
        self._history = AuditLog(folder)
        self._read: tuple[int, int] | None = None
        self._counts: Counter[str] = Counter()

    def measure(self) -> None:
        try:
            stat = self._history.file.stat()
        except FileNotFoundError:
            return
        if (stat.st_mtime_ns, stat.st_size) != self._read:
            keys, _actions = self._history.closed()
            self._counts = Counter(key.partition("/")[0] for key in pc.unique(keys).to_pylist())
            self._read = (stat.st_mtime_ns, stat.st_size)

    def of(self, flow: str) -> int:
        return self._counts[flow]


class FileCounter:
    """Counts the rows of the Parquet files below a folder, by flow and one column. Each file is read once.

    A record that a new generation of its flow refuses again counts again.
    """

    def __init__(self, folder: StatePath, column: str | None = None) -> None:
        self._folder, self._column = folder, column
        self._files: dict[StatePath, tuple[tuple[int, int], Counter[str]]] = {}
        self.counts: dict[str, dict[str, int]] = {}
        """By flow, then by the value of the column."""
        self._totals: deque[tuple[float, int]] = deque(maxlen=_MEASUREMENTS_PER_MINUTE)

    def measure(self) -> None:
        """Find new files and count their rows."""
        files: dict[StatePath, tuple[tuple[int, int], Counter[str]]] = {}
        for file in in_order(self._folder.glob("*/*/*.parquet")):
            try:
                stat = file.stat()
                stamp = (stat.st_mtime_ns, stat.st_size)
                known = self._files.get(file)
                files[file] = known if known and known[0] == stamp else (stamp, self._count(file))
            except FileNotFoundError:
                continue  # it was merged or deleted meanwhile
        self._files = files
        counts: dict[str, Counter[str]] = {}
        for file, (_stamp, in_file) in files.items():
            counts.setdefault(file.parent.parent.name, Counter()).update(in_file)
        self.counts = {flow: dict(of_flow.most_common(_MAX_REASONS)) for flow, of_flow in counts.items()}
        self._totals.append((time.monotonic(), sum(self.of(flow) for flow in self.counts)))

    def per_minute(self) -> float | None:
        """New rows in about the last minute; None before the second measurement."""
        totals = list(self._totals)
        if len(totals) < 2:
            return None
        (start, before), (end, after) = totals[0], totals[-1]
        return (after - before) / max(end - start, 0.001) * 60

    def of(self, flow: str) -> int:
        return sum(self.counts.get(flow, {}).values())

    def _count(self, file: StatePath) -> Counter[str]:
        if self._column is None:
            return Counter({"": rows_in(file)})
        values: Any = read_tables([file], None, [self._column])[self._column]
        return Counter({str(row["values"]): int(row["counts"]) for row in values.value_counts().to_pylist()})
