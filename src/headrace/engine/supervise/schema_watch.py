"""Watches schema registries: a newer schema is tried on the flows, then accepted or refused.

A newer schema takes effect only if every flow of the project can continue with it from its checkpoint. The plan is made
and compared with it first, so no flow is stopped for a schema that is refused.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from headrace.core.errors import Exit, ProjectError
from headrace.core.format import Offer, RegistryBacked
from headrace.engine.positions.upgrade import change_error, detect_change
from headrace.engine.state.schemas import stored_schema
from headrace.engine.state.state import StateDir
from headrace.engine.supervise.background import Notes, PeriodicTask
from headrace.plan.model import FlowPlan, Plan, StreamInput
from headrace.plan.planner import make_plan
from headrace.project.loader import Project

_MAX_PAUSE_SECONDS = 5.0


@dataclass
class SchemaWatch:
    """Watches the schemas of all streams and sinks of a project."""

    project: Project
    state: StateDir
    probe: Callable[[FlowPlan], None]
    """Raises a ProjectError if a flow's SQL or sinks do not accept the rows of a plan; starts nothing."""
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By stream and outcome: accepted, refused or unreachable."""
    _plans: dict[str, FlowPlan] = field(default_factory=dict)
    _refused: dict[str, ProjectError] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        for name, form in self._stream_formats().items():
            reason = form.refusal(self.project.context)
            if reason is not None:
                self._refused[name] = _refusal(f"stream '{name}'", reason)

    def look(self) -> list[ProjectError]:
        """Query every registry that is due, and accept or refuse its schema; returns warnings.

        Flows that read an accepted schema get a plan with it: see `take`.
        """
        if any(self.state.generations(flow).candidate() for flow in self.project.spec.flows):
            return []  # the running flow differs from the project until the switch is done
        warnings = [self._look(name, form) for name, form in self._first_streams()]
        warnings += [self._look_for_sink(flow, form) for flow, form in self._sink_formats().items()]
        return [warning for warning in warnings if warning is not None]

    def take(self) -> dict[str, FlowPlan]:
        """The plans of flows with a newly accepted schema, by flow; each is returned once."""
        with self._lock:
            plans, self._plans = self._plans, {}
            return plans

    def refusal(self, flow: FlowPlan) -> ProjectError | None:
        """Why a flow does not use the newest schema of a stream; None if it does."""
        with self._lock:
            refused = (self._refused.get(stream.name) for stream in flow.streams())
            return next((error for error in refused if error is not None), None)

    def pause(self) -> float | None:
        """Seconds between two looks; None if no format has a registry."""
        forms = [*self._stream_formats().values(), *self._sink_formats().values()]
        every = [form.refresh_every.total_seconds() for form in forms if form.refresh_every]
        return min([_MAX_PAUSE_SECONDS, *every]) if every else None

    def start(self, notes: Notes) -> PeriodicTask | None:
        """Look periodically until the task is closed; warnings are noted."""
        seconds = self.pause()
        return None if seconds is None else PeriodicTask("schemas", seconds, lambda: self._look_and_note(notes), notes)

    def _look_and_note(self, notes: Notes) -> None:
        for error in self.look():
            notes.add(error.code, error.message)

    def _stream_formats(self) -> dict[str, RegistryBacked]:
        formats: dict[str, RegistryBacked] = {}
        for name, spec in self.project.spec.streams.items():
            if isinstance(spec.format, RegistryBacked) and spec.format.registry_key:
                formats[name] = spec.format
        return formats

    def _sink_formats(self) -> dict[str, RegistryBacked]:
        """The formats of sinks whose schema no stream shares, by flow. Their batches use the accepted schema."""
        read = {form.registry_key for form in self._stream_formats().values()}
        formats = {}
        for flow, spec in self.project.spec.flows.items():
            for form in (part for sink in spec.sinks for _, part in sink if isinstance(part, RegistryBacked)):
                if form.registry_key and form.registry_key not in read:
                    formats[flow] = form
                    read.add(form.registry_key)
        return formats

    def _look_for_sink(self, flow: str, form: RegistryBacked) -> ProjectError | None:
        try:
            offer = form.offer(self.project.context)
        except ProjectError as error:
            return self._unreachable(f"a sink of flow '{flow}'", flow, error)
        if offer is None:
            return None
        breaches = offer.breaches(None)
        self.counts[flow, "refused" if breaches else "accepted"] += 1
        if not breaches:
            offer.accept()
            return None
        reason = _first_breaches(breaches)
        offer.refuse(reason)
        return _refusal(f"a sink of flow '{flow}'", reason)

    def _unreachable(self, what: str, name: str, error: ProjectError) -> ProjectError:
        self.counts[name, "unreachable"] += 1
        return ProjectError(error.code, f"{what} continues with the stored schema: {error.message}", hint=error.hint)

    def _first_streams(self) -> Iterator[tuple[str, RegistryBacked]]:
        """One stream for each schema, because several streams may share one."""
        seen = set()
        for name, form in self._stream_formats().items():
            if form.registry_key not in seen:
                seen.add(form.registry_key)
                yield name, form

    def _look(self, name: str, form: RegistryBacked) -> ProjectError | None:
        formats = self._stream_formats()
        streams = [other for other in formats if formats[other].registry_key == form.registry_key]
        try:
            offer = form.offer(self.project.context)
        except ProjectError as error:
            unreachable = self._unreachable(f"stream '{name}'", name, error)
            return unreachable.at(self.project.origin("streams", name, "format"))
        if offer is None:
            if form.refusal(self.project.context) is None:
                self._forget(streams)
            return None
        return self._judge(name, streams, offer)

    def _judge(self, name: str, streams: list[str], offer: Offer) -> ProjectError | None:
        reason, plan = self._trial(streams, offer)
        if reason is not None:
            offer.refuse(reason)
            self.counts[name, "refused"] += 1
            with self._lock:
                self._refused |= {stream: _refusal(f"stream '{stream}'", reason) for stream in streams}
            return self._refused[name].at(self.project.origin("streams", name, "format"))
        offer.accept()
        self.counts[name, "accepted"] += 1
        self._forget(streams)
        if plan is not None:
            with self._lock:
                self._plans |= {flow.name: flow for flow in plan.flows if _reads(flow, streams)}
        return None

    def _forget(self, streams: list[str]) -> None:
        with self._lock:
            for stream in streams:
                self._refused.pop(stream, None)

    def _trial(self, streams: list[str], offer: Offer) -> tuple[str | None, Plan | None]:
        """Why the flows cannot continue with an offered schema, or the plan in which they do."""
        inputs = [stream for flow in self._plan(self.project).flows for stream in flow.streams()]
        used = [_used_columns(stream) for stream in inputs if stream.name in streams]
        for columns in (*used, frozenset[str]()):  # the last: bytes whose meaning changes for every reader
            breaches = offer.breaches(columns)
            if breaches:
                return _first_breaches(breaches), None
        project = _with_format(self.project, streams, offer)
        try:
            plan = self._plan(project)
            for flow in plan.flows:
                self._try_flow(project, flow, streams)
        except ProjectError as error:
            return f"{error.message} ({error.code})", None
        return None, plan

    def _try_flow(self, project: Project, flow: FlowPlan, streams: list[str]) -> None:
        change = detect_change(project, self.state, flow)
        error = change_error(project, change)
        if error is not None:
            raise error
        if change.generation is not None and _reads(flow, streams):
            self.probe(flow)

    def _plan(self, project: Project) -> Plan:
        return make_plan(project, (), lambda name, _spec: stored_schema(self.state, name))


def _reads(flow: FlowPlan, streams: list[str]) -> bool:
    return any(stream.name in streams for stream in flow.streams())


def _first_breaches(breaches: Sequence[str]) -> str:
    return "; ".join(breaches[:5])


def _used_columns(stream: StreamInput) -> frozenset[str] | None:
    """The columns that a flow uses; None for all of them."""
    event_time = stream.spec.event_time
    if stream.columns is None:
        return None
    return frozenset([*stream.columns, *([event_time.column] if event_time else [])])


def _with_format(project: Project, streams: list[str], offer: Offer) -> Project:
    """The project as if the offered schema were accepted."""
    specs = dict(project.spec.streams)
    for name in streams:
        form = specs[name].format
        assert form is not None, "a stream with a registry has a format"
        specs[name] = specs[name].model_copy(update={"format": offer.applied(form)})
    return replace(project, spec=project.spec.model_copy(update={"streams": specs}))


def _refusal(whose: str, reason: str) -> ProjectError:
    return ProjectError(
        "schema-refused",
        f"the newest schema of {whose} is refused, and the previous one stays in use: {reason}",
        hint="fix the schema in the registry; to accept it anyway, delete its file in `descriptors` in the state "
        "folder and start the flows over with --new-generation",
        exit_code=Exit.CONFLICT,
    )
