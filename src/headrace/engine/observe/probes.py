"""What is measured beside the flows every few seconds: how far they are behind, and what they could not take."""

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

_MOST_REASONS = 50
_MINUTE_OF_LOOKS = 13


@dataclass(frozen=True)
class Measured:
    """How far a flow was behind the end of what it reads, and when."""

    lag: FlowLag
    at: datetime

    def of_stream(self, name: str) -> int | None:
        """Unread records of one stream."""
        parts = [split.lag for split in self.lag.splits.get(name, ())]
        known = [part for part in parts if part is not None]
        return sum(known) if parts and len(known) == len(parts) else None


class LagMeter:
    """Measures the lag of each flow, and lets streams that are idle say so. Connections are kept."""

    def __init__(self, project: str, context: Context, state: StateDir, runs: Sequence[FlowRun], notes: Notes) -> None:
        self._project, self._context, self._state = project, context, state
        self._runs, self._notes = runs, notes
        self._probes: dict[str, tuple[FlowPlan, LagProbe]] = {}
        self.measured: dict[str, Measured] = {}
        """By the name of the run: a candidate is measured too."""

    def measure(self) -> None:
        """Measure all flows once. What cannot be measured is not known: an old lag is no lag."""
        candidates = [run.building.candidate for run in list(self._runs) if run.building is not None]
        for run in [*self._runs, *candidates]:
            found = None if run.done else self._measured(run)
            if found is None:
                self.measured.pop(run.name, None)
            else:
                self.measured[run.name] = found
            if run.state == "running":
                self._beat(run, found)
        for gone in self.measured.keys() - {run.name for run in [*self._runs, *candidates]}:
            del self.measured[gone]

    def close(self) -> None:
        """Let go of all connections."""
        for _plan, probe in self._probes.values():
            probe.close()

    def _measured(self, run: FlowRun) -> Measured | None:
        name, state = run.name, run.starter.state if run.starter else self._state
        try:
            found = self._probe(run).measure(state.generations(run.plan.name).current())
        except ProjectError as error:
            if run.state != "degraded":  # the flow itself says it then
                self._notes.add(f"lag of {name}", error.message)
            if name in self._probes:
                self._probes.pop(name)[1].close()  # a client may not recover from what it met
            return None
        return Measured(found, datetime.now(UTC))

    def _probe(self, run: FlowRun) -> LagProbe:
        plan, probe = self._probes.get(run.name, (None, None))
        if probe is None or plan is not run.plan:
            if probe is not None:  # the flow has become another one
                probe.close()
            probe = LagProbe(self._project, run.plan, self._context)
            self._probes[run.name] = run.plan, probe
        return probe

    def _beat(self, run: FlowRun, measured: Measured | None) -> None:
        """Move on the watermark of streams that have been idle for as long as their `idle` says."""
        if run.is_candidate or is_pending(self._state.generations(run.plan.name).current()):
            return  # what is still to come from the history is old
        now = datetime.now(UTC)
        for stream in run.plan.streams():
            idle = stream.event_time.idle if stream.event_time else None
            numbers = run.numbers.streams.get(stream.name)
            if idle is None or numbers is None:
                continue
            unread = measured.of_stream(stream.name) if measured else None
            caught_up = unread == 0 if unread is not None else bool(run.caught_up)
            time_ms = due(now, numbers.last_row_at or run.since, caught_up, idle)
            if time_ms is not None:
                write_heartbeat(self._state, run.plan.name, stream.name, time_ms)


class ClosedLetters:
    """Counts the dead letters of each flow that were replayed or discarded; the history is read when it has grown."""

    def __init__(self, folder: StatePath) -> None:
        self._history = AuditLog(folder)
        self._read: tuple[int, int] | None = None
        self._counts: Counter[str] = Counter()

    def measure(self) -> None:
        """Look whether more was closed."""
        try:
            about = self._history.file.stat()
        except FileNotFoundError:
            return
        if (about.st_mtime_ns, about.st_size) != self._read:
            keys, _what = self._history.closed()
            self._counts = Counter(key.partition("/")[0] for key in pc.unique(keys).to_pylist())
            self._read = (about.st_mtime_ns, about.st_size)

    def of(self, flow: str) -> int:
        """All closed letters of a flow."""
        return self._counts[flow]


class FileCounter:
    """Counts rows of the Parquet files below a folder by flow and one column; each file is read once.

    A record that is met again by a new generation of its flow counts again.
    """

    def __init__(self, folder: StatePath, column: str | None = None) -> None:
        self._folder, self._column = folder, column
        self._files: dict[StatePath, tuple[tuple[int, int], Counter[str]]] = {}
        self.counts: dict[str, dict[str, int]] = {}
        """By flow, then by the column's value."""
        self._totals: deque[tuple[float, int]] = deque(maxlen=_MINUTE_OF_LOOKS)

    def measure(self) -> None:
        """Look for new files and count what is in them."""
        files: dict[StatePath, tuple[tuple[int, int], Counter[str]]] = {}
        for file in in_order(self._folder.glob("*/*/*.parquet")):
            try:
                about = file.stat()
                stamp = (about.st_mtime_ns, about.st_size)
                known = self._files.get(file)
                files[file] = known if known and known[0] == stamp else (stamp, self._count(file))
            except FileNotFoundError:
                continue  # it was moved or removed meanwhile
        self._files = files
        counts: dict[str, Counter[str]] = {}
        for file, (_stamp, found) in files.items():
            counts.setdefault(file.parent.parent.name, Counter()).update(found)
        self.counts = {flow: dict(found.most_common(_MOST_REASONS)) for flow, found in counts.items()}
        self._totals.append((time.monotonic(), sum(self.of(flow) for flow in self.counts)))

    def per_minute(self) -> float | None:
        """How many came in the last minute or so; None until it was looked twice."""
        totals = list(self._totals)
        if len(totals) < 2:
            return None
        (then, before), (now, after) = totals[0], totals[-1]
        return (after - before) / max(now - then, 0.001) * 60

    def of(self, flow: str) -> int:
        """All rows of a flow."""
        return sum(self.counts.get(flow, {}).values())

    def _count(self, file: StatePath) -> Counter[str]:
        if self._column is None:
            return Counter({"": rows_in(file)})
        values: Any = read_tables([file], None, [self._column])[self._column]
        return Counter({str(one["values"]): int(one["counts"]) for one in values.value_counts().to_pylist()})
