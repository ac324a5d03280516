"""The status document: what an engine knows about its flows, in the shape of `GET /api/v1/status`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from headrace import __version__
from headrace.core.errors import ProjectError
from headrace.engine.observe.probes import ClosedLetterCounter, FileCounter, LagMeter
from headrace.engine.observe.volumes import bytes_in, bytes_out
from headrace.engine.spark.progress import iso
from headrace.engine.state.status_file import STATES
from headrace.engine.supervise.background import Notes
from headrace.engine.supervise.candidate_switch import CandidateSwitch
from headrace.engine.supervise.flow_run import FlowRun

STALE_AFTER_S = 5
_NOT_READY = ("waiting", "starting", "degraded", "failed")


@dataclass
class EngineStatus:
    """All that is known about one engine, put together when it is asked for. Unknown is null, never 0."""

    project: str
    pid: int
    runs: list[FlowRun]
    notes: Notes
    lags: LagMeter
    letters: FileCounter
    closed: ClosedLetterCounter
    late: FileCounter
    redact: Callable[[str], str] = str
    """Hides secrets: reasons are what other systems said."""
    schemas: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """How often the schema of a stream was, say, refused."""
    tables: Callable[[], list[dict[str, Any]]] = list
    """Gives what their capture says of the tables of the project."""
    http: str | None = None
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    ended: bool = False

    def document(self) -> dict[str, Any]:
        """The whole status."""
        now = datetime.now(UTC)
        found: dict[str, Any] = self._clean(self._document(now))
        return found

    def _clean(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.redact(value)
        if isinstance(value, dict):
            return {key: self._clean(child) for key, child in value.items()}
        return [self._clean(child) for child in value] if isinstance(value, list) else value

    def _document(self, now: datetime) -> dict[str, Any]:
        return {
            "as_of": iso(now),
            "stale_after_s": STALE_AFTER_S,
            "version": __version__,
            "project": self.project,
            "engine": {
                "pid": self.pid,
                "state": "stopped" if self.ended else "running",
                "started_at": iso(self.started_at),
                "http": self.http,
            },
            "ready": not self.not_ready(),
            "flows": {state: count for state in STATES if (count := sum(run.state == state for run in self.runs))},
            "worst_lag": self._worst_lag(),
            "dead_letters": self._dead_letters(),
            "problems": [self._problem(run) for run in self.runs if run.state in ("degraded", "failed")],
            "notes": self.notes.all(),
            "tables": self.tables(),
            "flow_list": [self._flow(run, now) for run in self.runs],
        }

    def not_ready(self) -> list[dict[str, Any]]:
        """The required flows that keep the engine from being ready, and why."""
        required = [run for run in self.runs if run.plan.spec.required and _not_ready(run)]
        return [{"flow": run.plan.name, "state": run.state, "text": self.redact(_why(run))} for run in required]

    def _problem(self, run: FlowRun) -> dict[str, Any]:
        error = run.error
        code = error.code if error else run.reason.code if run.reason else None
        since = run.reason.since if run.reason else run.since
        return {"code": code, "flow": run.plan.name, "since": iso(since), "text": _why(run)}

    def _worst_lag(self) -> dict[str, Any] | None:
        names = {run.name for run in self.runs}  # a candidate is behind by nature
        measured = {name: one.lag.seconds for name, one in self.lags.measured.items() if name in names}
        known = {name: seconds for name, seconds in measured.items() if seconds is not None}
        if not known:
            return None
        worst = max(known, key=lambda name: known[name])
        return {"flow": worst, "s": round(known[worst], 3)}

    def _dead_letters(self) -> dict[str, Any]:
        met = sum(self.letters.of(run.plan.name) for run in self.runs)
        still = sum(self._open_letters(run.plan.name) for run in self.runs)
        return {"open": still, "met": met, "per_min": _rounded(self.letters.per_minute())}

    def _open_letters(self, flow: str) -> int:
        """Letters that nobody has replayed or discarded. The two counts are not taken in the same moment."""
        return max(0, self.letters.of(flow) - self.closed.of(flow))

    def _flow(self, run: FlowRun, now: datetime) -> dict[str, Any]:
        numbers, name = run.counters, run.plan.name
        reason = run.reason
        return {
            "name": name,
            "state": run.state,
            "since": iso(run.since),
            "reason": reason and {"code": reason.code, "text": reason.text, "since": iso(reason.since)},
            "note": run.note and {"code": run.note.code, "text": run.note.text, "since": iso(run.note.since)},
            "stop": run.stop_order and {"by": run.stop_order.by, "at": run.stop_order.at},
            "required": run.plan.spec.required,
            "mode": run.plan.spec.mode,
            "schedule": run.schedule,
            "generation": run.generation,
            "candidate": None if run.switch is None else self._candidate(run.switch),
            "rows_in": numbers.rows_in if run.has_run else None,
            "rows_out": numbers.rows_out,
            "rows_per_s": _rounded(numbers.rows_per_s()),
            "bytes_in": _total(bytes_in(run.plan)) if run.has_run else None,
            "bytes_out": _total(bytes_out(run.plan)),
            "batches": numbers.batches,
            "last_batch": numbers.last_batch,
            "busy_s": None if run.busy_since is None else _rounded(time.monotonic() - run.busy_since),
            "load": _rounded(numbers.load),
            "watermark": iso(numbers.watermark),
            "watermark_gap_s": _gap(now, numbers.watermark),
            "held_back_by": numbers.held_back_by,
            "streams": self._streams(run, now),
            "lag": self._lag(name),
            "caught_up": self._caught_up(run),
            "state_rows": numbers.state_rows,
            "state_bytes": numbers.state_bytes,
            "late_rows": numbers.late_rows + self.late.of(name) if run.plan.state else None,
            "dead_letters": self.letters.of(name),
            "dead_letters_open": self._open_letters(name),
            "dead_letters_by_reason": self.letters.counts.get(name, {}),
            "latency_s": _rounded(numbers.latency_s),
            "restarts": run.restarts,
            "last_error": None if run.last_error is None else _error(run.last_error),
        }

    def _candidate(self, building: CandidateSwitch) -> dict[str, Any]:
        """The generation that is built beside the one that runs."""
        run = building.candidate
        return {
            "generation": run.generation,
            "phase": building.phase,
            "state": run.state,
            "text": building.text,
            "rows_in": run.rows_in,
            "batches": run.batches,
            "rows_per_s": _rounded(run.counters.rows_per_s()),
            "lag": self._lag(run.name),
            "last_error": None if run.last_error is None else _error(run.last_error),
        }

    def _streams(self, run: FlowRun, now: datetime) -> list[dict[str, Any]]:
        measured = self.lags.measured.get(run.plan.name)
        return [
            {
                "name": name,
                "newest": iso(one.newest),
                "watermark": iso(one.watermark),
                "watermark_gap_s": _gap(now, one.watermark),
                "lag_records": measured.of_stream(name) if measured else None,
            }
            for name, one in run.counters.streams.items()
        ]

    def _lag(self, name: str) -> dict[str, Any] | None:
        found = self.lags.measured.get(name)
        if found is None or not any(found.lag.splits.values()):
            return None  # no input tells
        lag = found.lag
        return {
            "records": lag.records,
            "s": _rounded(lag.seconds),
            "trend": lag.pace.trend,
            "rate_per_s": _rounded(lag.pace.rate),
            "catch_up_s": _rounded(lag.pace.catch_up_s),
            "as_of": iso(found.at),
        }

    def _caught_up(self, run: FlowRun) -> bool | None:
        """By the count of unread records where there is one, else by what Spark waits for."""
        if run.state == "stopped":
            return run.caught_up
        found = self.lags.measured.get(run.plan.name)
        records = found.lag.records if found else None
        return run.caught_up if records is None else records == 0 and run.caught_up is not False


def _not_ready(run: FlowRun) -> bool:
    """A flow that waits for its time is as ready as it can be."""
    waits = run.state == "waiting" and run.schedule is not None and run.schedule["next"] is not None
    return run.state in _NOT_READY and not waits


def _why(run: FlowRun) -> str:
    if run.error is not None:
        return run.error.message
    if run.reason is not None:
        return run.reason.text
    return {"waiting": "waits for the flow it reads", "starting": "has not made progress yet"}.get(run.state, "")


def _total(known: Mapping[str, int]) -> int | None:
    return sum(known.values()) if known else None


def _error(error: ProjectError) -> dict[str, Any]:
    return {"code": error.code, "message": error.message, "hint": error.hint}


def _gap(now: datetime, moment: datetime | None) -> float | None:
    return None if moment is None else _rounded((now - moment).total_seconds())


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 3)
