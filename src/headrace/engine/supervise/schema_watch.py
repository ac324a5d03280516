"""Schemas that a registry keeps: asked for from time to time, tried on the flows, taken over or refused.

A newer schema is in force only when every flow of the project can go on with it from its checkpoint. So the plan is
made with it first, and compared; nothing is stopped for a schema that is then refused.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from headrace.core.errors import Exit, ProjectError
from headrace.core.format import Format, Offer
from headrace.engine.positions.upgrade import change_of, refusal
from headrace.engine.state.schemas import stored_schema
from headrace.engine.state.state import StateDir
from headrace.engine.supervise.background import Notes, Periodic
from headrace.plan.model import FlowPlan, Plan, StreamInput
from headrace.plan.planner import make_plan
from headrace.project.loader import Project

_LONGEST_PAUSE = 5.0


@dataclass
class SchemaWatch:
    """Looks after the schemas of all streams of a project."""

    project: Project
    state: StateDir
    probe: Callable[[FlowPlan], None]
    """Raises a ProjectError when a flow's SQL or sinks do not take what a plan gives them; starts nothing."""
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By stream, how often a schema was accepted or refused, or the registry did not answer."""
    _plans: dict[str, FlowPlan] = field(default_factory=dict)
    _refused: dict[str, ProjectError] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        for name, form in self._watched().items():
            reason = form.refusal(self.project.context)
            if reason is not None:
                self._refused[name] = _refusal(f"stream '{name}'", reason)

    def look(self) -> list[ProjectError]:
        """Ask every registry that is due, and judge what it offers; warnings about what is not as it should be.

        The flows that read a schema that was accepted are planned with it: see `take`.
        """
        if any(self.state.generations(flow).candidate() for flow in self.project.spec.flows):
            return []  # what runs is not what the project says; it is looked again when it is
        found = [self._look(name, form) for name, form in self._firsts()]
        found += [self._look_for_sink(flow, form) for flow, form in self._written().items()]
        return [error for error in found if error is not None]

    def take(self) -> dict[str, FlowPlan]:
        """The plans of flows that are to go on with a new schema, by flow; each is given once."""
        with self._lock:
            found, self._plans = self._plans, {}
            return found

    def refusal(self, flow: FlowPlan) -> ProjectError | None:
        """Why a flow does not have the newest schema of a stream, None when it has."""
        with self._lock:
            return next((self._refused[one.name] for one in flow.streams() if one.name in self._refused), None)

    def pause(self) -> float | None:
        """Seconds between two looks, None when nothing is to be looked after."""
        forms = [*self._watched().values(), *self._written().values()]
        every = [form.refresh_every.total_seconds() for form in forms if form.refresh_every]
        return min([_LONGEST_PAUSE, *every]) if every else None

    def start(self, notes: Notes) -> Periodic | None:
        """Look again and again until it is closed; the warnings are noted."""
        seconds = self.pause()
        return None if seconds is None else Periodic("schemas", seconds, lambda: self._noted(notes), notes)

    def _noted(self, notes: Notes) -> None:
        for error in self.look():
            notes.add(error.code, error.message)

    def _watched(self) -> dict[str, Format]:
        streams = self.project.spec.streams
        return {name: one.format for name, one in streams.items() if one.format and one.format.registry_key}

    def _written(self) -> dict[str, Format]:
        """The formats of sinks that no stream shares, by flow; its batches take the one that is in force."""
        read = {form.registry_key for form in self._watched().values()}
        found = {}
        for flow, spec in self.project.spec.flows.items():
            for form in (part for sink in spec.sinks for _, part in sink if isinstance(part, Format)):
                if form.registry_key and form.registry_key not in read:
                    found[flow] = form
                    read.add(form.registry_key)
        return found

    def _look_for_sink(self, flow: str, form: Format) -> ProjectError | None:
        try:
            offer = form.offer(self.project.context)
        except ProjectError as error:
            return self._unreachable(f"a sink of flow '{flow}'", flow, error)
        if offer is None:
            return None
        broken = offer.breaches(None)
        self.counts[flow, "refused" if broken else "accepted"] += 1
        if not broken:
            offer.accept()
            return None
        offer.refuse("; ".join(broken[:5]))
        return _refusal(f"a sink of flow '{flow}'", "; ".join(broken[:5]))

    def _unreachable(self, what: str, name: str, error: ProjectError) -> ProjectError:
        self.counts[name, "unreachable"] += 1
        return ProjectError(
            error.code, f"{what} goes on with the schema that is kept: {error.message}", hint=error.hint
        )

    def _firsts(self) -> Iterator[tuple[str, Format]]:
        """One stream for each schema: several may share one."""
        seen = set()
        for name, form in self._watched().items():
            if form.registry_key not in seen:
                seen.add(form.registry_key)
                yield name, form

    def _look(self, name: str, form: Format) -> ProjectError | None:
        streams = [other for other, one in self._watched().items() if one.registry_key == form.registry_key]
        try:
            offer = form.offer(self.project.context)
        except ProjectError as error:
            away = self._unreachable(f"stream '{name}'", name, error)
            return away.at(self.project.origin("streams", name, "format"))
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
                self._refused |= {one: _refusal(f"stream '{one}'", reason) for one in streams}
            return self._refused[name].at(self.project.origin("streams", name, "format"))
        offer.accept()
        self.counts[name, "accepted"] += 1
        self._forget(streams)
        if plan is not None:
            reads = {flow.name: flow for flow in plan.flows if any(one.name in streams for one in flow.streams())}
            with self._lock:
                self._plans |= reads
        return None

    def _forget(self, streams: list[str]) -> None:
        with self._lock:
            for one in streams:
                self._refused.pop(one, None)

    def _trial(self, streams: list[str], offer: Offer) -> tuple[str | None, Plan | None]:
        """Why the flows cannot go on with an offered schema, or the plan in which they do."""
        before = self._plan(self.project)
        for flow in before.flows:
            for one in flow.streams():
                if one.name in streams:
                    broken = offer.breaches(_used(one))
                    if broken:
                        return "; ".join(broken[:5]), None
        broken = offer.breaches(frozenset())
        if broken:  # bytes that would mean something else, whoever reads them
            return "; ".join(broken[:5]), None
        tried = _with_format(self.project, streams, offer)
        try:
            plan = self._plan(tried)
            for flow in plan.flows:
                self._try_flow(tried, flow, streams)
        except ProjectError as error:
            return f"{error.message} ({error.code})", None
        return None, plan

    def _try_flow(self, tried: Project, flow: FlowPlan, streams: list[str]) -> None:
        change = change_of(tried, self.state, flow)
        error = refusal(tried, change)
        if error is not None:
            raise error
        if change.generation is not None and any(one.name in streams for one in flow.streams()):
            self.probe(flow)

    def _plan(self, project: Project) -> Plan:
        return make_plan(project, (), lambda name, _spec: stored_schema(self.state, name))


def _used(stream: StreamInput) -> frozenset[str] | None:
    """The columns that a flow uses, None for all of them."""
    event_time = stream.spec.event_time
    if stream.columns is None:
        return None
    return frozenset([*stream.columns, *([event_time.column] if event_time else [])])


def _with_format(project: Project, streams: list[str], offer: Offer) -> Project:
    """The project as if the offered schema were in force."""
    specs = dict(project.spec.streams)
    for name in streams:
        form = specs[name].format
        assert form is not None, "a stream with a registry has a format"
        specs[name] = specs[name].model_copy(update={"format": offer.applied(form)})
    return replace(project, spec=project.spec.model_copy(update={"streams": specs}))


def _refusal(whose: str, reason: str) -> ProjectError:
    return ProjectError(
        "schema-refused",
        f"the newest schema of {whose} is refused, the one before it stays in force: {reason}",
        hint="mend the schema in the registry; to take it all the same, remove its file in `descriptors` of the state "
        "folder and begin the flows anew with --new-generation",
        exit_code=Exit.CONFLICT,
    )
