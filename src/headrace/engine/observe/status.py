"""The status document of an engine, as returned by `GET /api/v1/status`."""

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
    """The status of one engine, computed on request. An unknown value is null, not 0."""

    project: str
    pid: int
    runs: list[FlowRun]
    notes: Notes
    lags: LagMeter
    letters: FileCounter
    closed: ClosedLetterCounter
    late: FileCounter
    redact: Callable[[str], str] = str
    """Hides secrets: a reason may quote the message of another system."""
    schemas: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Number of schemas by stream and outcome."""
    tables: Callable[[], list[dict[str, Any]]] = list
    """Returns the capture status of the tables of the project."""
    http: str | None = None
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    ended: bool = False

    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = self._redacted(self._document(datetime.now(UTC)))
        return document

    def _redacted(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.redact(value)
        if isinstance(value, dict):
            return {key: self._redacted(child) for key, child in value.items()}
        return [self._redacted(child) for child in value] if isinstance(value, list) else value

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
        """The required flows that are not ready, each with the reason."""
        required = [run for run in self.runs if run.plan.spec.required and _not_ready(run)]
        return [{"flow": run.plan.name, "state": run.state, "text": self.redact(_reason(run))} for run in required]

    def _problem(self, run: FlowRun) -> dict[str, Any]:
        error = run.error
        code = error.code if error else run.reason.code if run.reason else None
        since = run.reason.since if run.reason else run.since
        return {"code": code, "flow": run.plan.name, "since": iso(since), "text": _reason(run)}

    def _worst_lag(self) -> dict[str, Any] | None:
        names = {run.name for run in self.runs}  # a candidate is always behind
        measured = {name: each.lag.seconds for name, each in self.lags.measured.items() if name in names}
        known = {name: seconds for name, seconds in measured.items() if seconds is not None}
        if not known:
            return None
        worst = max(known, key=lambda name: known[name])
        return {"flow": worst, "s": round(known[worst], 3)}

    def _dead_letters(self) -> dict[str, Any]:
        total = sum(self.letters.of(run.plan.name) for run in self.runs)
        still_open = sum(self._open_letters(run.plan.name) for run in self.runs)
        return {"open": still_open, "met": total, "per_min": _rounded(self.letters.per_minute())}

    def _open_letters(self, flow: str) -> int:
        """Letters that were neither replayed nor discarded; not below 0, as the counts are of different moments."""
        return max(0, self.letters.of(flow) - self.closed.of(flow))

    def _flow(self, run: FlowRun, now: datetime) -> dict[str, Any]:
        counters, name = run.counters, run.plan.name
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
            "rows_in": counters.rows_in if run.has_run else None,
            "rows_out": counters.rows_out,
            "rows_per_s": _rounded(counters.rows_per_s()),
            "bytes_in": _total(bytes_in(run.plan)) if run.has_run else None,
            "bytes_out": _total(bytes_out(run.plan)),
            "batches": counters.batches,
            "last_batch": counters.last_batch,
            "busy_s": None if run.busy_since is None else _rounded(time.monotonic() - run.busy_since),
            "load": _rounded(counters.load),
            "watermark": iso(counters.watermark),
            "watermark_gap_s": _gap(now, counters.watermark),
            "held_back_by": counters.held_back_by,
            "streams": self._streams(run, now),
            "lag": self._lag(name),
            "caught_up": self._caught_up(run),
            "state_rows": counters.state_rows,
            "state_bytes": counters.state_bytes,
            "late_rows": counters.late_rows + self.late.of(name) if run.plan.state else None,
            "dead_letters": self.letters.of(name),
            "dead_letters_open": self._open_letters(name),
            "dead_letters_by_reason": self.letters.counts.get(name, {}),
            "latency_s": _rounded(counters.latency_s),
            "restarts": run.restarts,
            "last_error": None if run.last_error is None else _error(run.last_error),
        }

    def _candidate(self, switch: CandidateSwitch) -> dict[str, Any]:
        run = switch.candidate
        return {
            "generation": run.generation,
            "phase": switch.phase,
            "state": run.state,
            "text": switch.text,
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
                "newest": iso(stream.newest),
                "watermark": iso(stream.watermark),
                "watermark_gap_s": _gap(now, stream.watermark),
                "lag_records": measured.of_stream(name) if measured else None,
            }
            for name, stream in run.counters.streams.items()
        ]

    def _lag(self, name: str) -> dict[str, Any] | None:
        measured = self.lags.measured.get(name)
        if measured is None or not any(measured.lag.splits.values()):
            return None  # no input reports positions
        lag = measured.lag
        return {
            "records": lag.records,
            "s": _rounded(lag.seconds),
            "trend": lag.pace.trend,
            "rate_per_s": _rounded(lag.pace.rate),
            "catch_up_s": _rounded(lag.pace.catch_up_s),
            "as_of": iso(measured.at),
        }

    def _caught_up(self, run: FlowRun) -> bool | None:
        """From the number of unread records if it is known, otherwise from what Spark waits for."""
        if run.state == "stopped":
            return run.caught_up
        measured = self.lags.measured.get(run.plan.name)
        records = measured.lag.records if measured else None
        return run.caught_up if records is None else records == 0 and run.caught_up is not False


def _not_ready(run: FlowRun) -> bool:
    """A flow that waits for its schedule counts as ready."""
    waits = run.state == "waiting" and run.schedule is not None and run.schedule["next"] is not None
    return run.state in _NOT_READY and not waits


def _reason(run: FlowRun) -> str:
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
