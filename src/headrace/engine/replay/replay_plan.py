"""Which dead letters can be replayed, and why others cannot. Needs no Spark."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.errors import Exit, ProjectError
from headrace.core.sink import Sink
from headrace.engine.letters.dead_letter_index import DeadLetterStore
from headrace.engine.replay.replay import Begun, FlowReplay, replay_id
from headrace.engine.state.schemas import infer_schema
from headrace.engine.state.state import StateDir
from headrace.plan.model import FlowInput, FlowPlan, StreamInput
from headrace.plan.planner import make_plan
from headrace.project.loader import Project
from headrace.sql.query import parse
from headrace.sql.streaming import refusals


@dataclass(frozen=True)
class RefusedLetters:
    """Letters of a flow that stay where they are."""

    flow: str
    letters: int
    why: ProjectError


@dataclass(frozen=True)
class ReplayPlan:
    """What a replay would do."""

    replays: Sequence[FlowReplay]
    refused: Sequence[RefusedLetters]


@dataclass
class ReplayPlanner:
    """Sorts letters into replays, one per flow, and refusals."""

    project: Project
    state: StateDir
    shelf: DeadLetterStore
    _refused: list[RefusedLetters] = field(default_factory=list)

    def plan(self, chosen: pa.Table, flows: Collection[str]) -> ReplayPlan:
        """The plan for the chosen letters of the shelf.

        What was begun before comes first, and is done as it was begun: all of it that belongs to the flows of the
        letters and to `flows`.
        """
        begun = Begun(self.state.replays)
        replays: list[FlowReplay] = []
        for name in sorted({*pc.unique(chosen["flow"]).to_pylist(), *flows}):
            mine = chosen.filter(pc.equal(chosen["flow"], name))
            folders = begun.of(name)
            flow = self._flow(name, mine.num_rows + sum(letters for _, letters in folders))
            if flow is None:
                continue
            replays += [FlowReplay(folder.name, flow, folder, letters, None) for folder, letters in folders]
            mine = self._replayable(flow, begun.without(name, mine))
            if mine.num_rows:
                made = replay_id(mine)
                replays.append(FlowReplay(made, flow, self.state.replays / made, mine.num_rows, mine))
        return ReplayPlan(tuple(replays), tuple(self._refused))

    def _flow(self, name: str, letters: int) -> FlowPlan | None:
        spec = self.project.spec.flows.get(name)
        if spec is None or not spec.sinks:
            if letters:
                why = _gone(f"the project has no flow '{name}' with sinks any more")
                self._refused.append(RefusedLetters(name, letters, why))
            return None
        plan = make_plan(self.project, (name,), lambda n, s: infer_schema(self.project, self.state, n, s))
        return plan.flow(name)

    def _replayable(self, flow: FlowPlan, letters: pa.Table) -> pa.Table:
        """Those of a flow's letters that can go through it."""
        if letters.num_rows and has_state(flow):
            self._refused.append(RefusedLetters(flow.name, letters.num_rows, self._stateful(flow, letters)))
            return letters.slice(0, 0)
        letters = self._settled(flow, letters)
        streams = {one.name: one for one in flow.streams()}
        sinks = {step.id: step.sink for step in flow.sinks}
        steps = {step.id for step in flow.steps()}
        found = [letters.slice(0, 0)]
        for name in pc.unique(letters["stream"]).to_pylist():
            mine = letters.filter(pc.equal(letters["stream"], name)).sort_by("_row")
            if name in streams:
                found.append(self._complete(flow, streams[name], mine))
            elif name in steps:
                found.append(self._whole_rows(flow, name, mine))
            else:
                why = _gone(f"flow '{flow.name}' does not read stream '{name}' any more")
                why = _refused_by(sinks[name]) if name in sinks else why
                self._refused.append(RefusedLetters(flow.name, mine.num_rows, why))
        return pa.concat_tables(found)

    def _settled(self, flow: FlowPlan, letters: pa.Table) -> pa.Table:
        """Letters of batches that are done. A batch that runs again may bring the record through by itself."""
        current = self.state.generations(flow.name).current()
        if current is None or not current.checkpoint.in_flight():
            return letters
        done = current.checkpoint.committed()
        newest = -1 if done is None else done.batch_id
        of_current = pc.equal(letters["generation"], current.id)
        in_flight = pc.fill_null(pc.and_(of_current, pc.greater(letters["batch"], newest)), False)
        number = pc.sum(in_flight).as_py() or 0
        if number:
            self._refused.append(RefusedLetters(flow.name, number, _in_flight(flow, newest + 1)))
        return letters.filter(pc.invert(in_flight))

    def _complete(self, flow: FlowPlan, stream: StreamInput, letters: pa.Table) -> pa.Table:
        """Letters with their bytes, and with the metadata columns that the flow uses."""
        with_bytes: list[bool] = []
        with_metadata: list[bool] = []
        for part in self.shelf.fetch(letters, ["value", "position", "metadata"]):
            usable = pc.is_valid(part["value"]) if stream.spec.format else pa.repeat(pa.scalar(False), part.num_rows)
            with_bytes += usable.to_pylist()
            with_metadata += _metadata_is_there(stream, part)
        without = with_bytes.count(False)
        if without:
            self._refused.append(RefusedLetters(flow.name, without, _no_bytes(stream)))
        complete = [a and b for a, b in zip(with_bytes, with_metadata, strict=True)]
        if complete.count(True) < len(complete) - without:
            lost = len(complete) - without - complete.count(True)
            self._refused.append(RefusedLetters(flow.name, lost, _no_metadata(flow, stream)))
        return letters.filter(pa.array(complete, pa.bool_()))

    def _whole_rows(self, flow: FlowPlan, step: str, letters: pa.Table) -> pa.Table:
        """Letters of a step that have the row; they come in again where the step stands."""
        whole = [one for part in self.shelf.fetch(letters, ["value"]) for one in pc.is_valid(part["value"]).to_pylist()]
        if not all(whole):
            self._refused.append(RefusedLetters(flow.name, whole.count(False), _no_row(step)))
        return letters.filter(pa.array(whole, pa.bool_()))

    def _stateful(self, flow: FlowPlan, letters: pa.Table) -> ProjectError:
        parts = self.shelf.fetch(letters, ["position"])
        positions = (json.loads(text) for part in parts for text in part["position"].to_pylist())
        return ProjectError(
            "replay-stateful",
            f"flow '{flow.name}' keeps state ({', '.join(flow.state) or 'a subquery'}): a record that comes later than "
            "its neighbours would find their windows closed",
            hint=f"take the flow back to the oldest of them instead: {rewind_command(flow.name, positions)}",
            exit_code=Exit.CONFLICT,
        )


def has_state(flow: FlowPlan) -> bool:
    """Whether its rows depend on more than one record; a query that no stream can run is not known well enough."""
    texts = [flow.sql, *(one.sql for one in flow.all_inputs() if isinstance(one, FlowInput))]
    return bool(flow.state) or any(refusals(parse(text)) for text in texts)


def rewind_command(flow: str, positions: Iterable[dict[str, Any]]) -> str:
    """The command that takes a flow back to the oldest of these positions."""
    oldest: dict[str, dict[str, int]] = {}
    for one in positions:
        if not {"topic", "partition", "offset"} <= one.keys():
            return f"headrace rewind {flow} --to earliest"
        offsets = oldest.setdefault(one["topic"], {})
        partition = str(one["partition"])
        offsets[partition] = min(one["offset"], offsets.get(partition, one["offset"]))
    return f"echo '{json.dumps(oldest)}' > oldest.json && headrace rewind {flow} --to oldest.json"


def _metadata_is_there(stream: StreamInput, letters: pa.Table) -> list[bool]:
    if not stream.metadata:
        return [True] * letters.num_rows
    position = stream.spec.source.position
    columns = zip(letters["position"].to_pylist(), letters["metadata"].to_pylist(), strict=True)
    return [
        all(
            name in json.loads(kept or "{}") or (name in position and name.lstrip("_") in json.loads(place))
            for name in stream.metadata
        )
        for place, kept in columns
    ]


def _in_flight(flow: FlowPlan, batch: int) -> ProjectError:
    return ProjectError(
        "replay-in-flight",
        f"batch {batch} of flow '{flow.name}', which met these letters, is not done: it may bring them through itself",
        hint=f"let it finish (headrace run {flow.name} --until-caught-up), then replay",
        exit_code=Exit.CONFLICT,
    )


def _refused_by(sink: Sink) -> ProjectError:
    return ProjectError(
        "replay-sink-letter",
        f"these rows have been through the flow, and {sink.label} refused them: there is no record to replay",
        hint="mend SQL or target, then rewind the flow; or write the rows in the letters yourself, and discard them",
    )


def _gone(message: str) -> ProjectError:
    return ProjectError(
        "replay-gone", message, hint="put it back, or discard the letters: headrace dead-letters discard"
    )


def _no_bytes(stream: StreamInput) -> ProjectError:
    return ProjectError(
        "replay-no-bytes",
        f"these letters of stream '{stream.name}' were kept without the bytes of a record, so nothing can be replayed",
        hint="rewind the flow instead; `on_error: dead_letter` keeps the bytes of streams that have a format",
    )


def _no_row(step: str) -> ProjectError:
    return ProjectError(
        "replay-no-bytes",
        f"these letters of step '{step}' were kept without the row, so nothing can be replayed",
        hint="rewind the flow instead",
    )


def _no_metadata(flow: FlowPlan, stream: StreamInput) -> ProjectError:
    return ProjectError(
        "replay-metadata",
        f"flow '{flow.name}' uses {', '.join(stream.metadata)} of stream '{stream.name}', which these letters were "
        "kept without: its SQL did not name them then",
        hint="rewind the flow instead, or take those columns out of its SQL",
    )
