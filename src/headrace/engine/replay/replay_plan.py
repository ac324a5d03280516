"""Decides which dead letters can be replayed, and why others cannot. Needs no Spark."""

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
from headrace.engine.replay.replay_folders import FlowReplay, UnfinishedReplays, replay_id
from headrace.engine.state.schemas import infer_schema
from headrace.engine.state.state import StateDir
from headrace.plan.model import FlowInput, FlowPlan, StreamInput
from headrace.plan.planner import make_plan
from headrace.project.loader import Project
from headrace.sql.query import parse
from headrace.sql.streaming import refusals


@dataclass(frozen=True)
class RefusedLetters:
    """Dead letters of a flow that cannot be replayed."""

    flow: str
    letters: int
    why: ProjectError


@dataclass(frozen=True)
class ReplayPlan:
    """The replays to run, and the letters that are refused."""

    replays: Sequence[FlowReplay]
    refused: Sequence[RefusedLetters]


@dataclass
class ReplayPlanner:
    """Divides dead letters into replays, one per flow, and refused letters."""

    project: Project
    state: StateDir
    store: DeadLetterStore
    _refused: list[RefusedLetters] = field(default_factory=list)

    def plan(self, chosen: pa.Table, flows: Collection[str]) -> ReplayPlan:
        """The plan for the chosen letters.

        Unfinished replays of the flows of these letters and of `flows` come first, with the letters they were started
        with.
        """
        unfinished = UnfinishedReplays(self.state.replays)
        replays: list[FlowReplay] = []
        for name in sorted({*pc.unique(chosen["flow"]).to_pylist(), *flows}):
            mine = chosen.filter(pc.equal(chosen["flow"], name))
            folders = unfinished.of(name)
            flow = self._flow(name, mine.num_rows + sum(letters for _, letters in folders))
            if flow is None:
                continue
            replays += [FlowReplay(folder.name, flow, folder, letters, None) for folder, letters in folders]
            mine = self._replayable(flow, unfinished.without(name, mine))
            if mine.num_rows:
                new_id = replay_id(mine)
                replays.append(FlowReplay(new_id, flow, self.state.replays / new_id, mine.num_rows, mine))
        return ReplayPlan(tuple(replays), tuple(self._refused))

    def _flow(self, name: str, letters: int) -> FlowPlan | None:
        spec = self.project.spec.flows.get(name)
        if spec is None or not spec.sinks:
            if letters:
                why = _no_target(f"the project no longer has a flow '{name}' with sinks")
                self._refused.append(RefusedLetters(name, letters, why))
            return None
        plan = make_plan(self.project, (name,), lambda n, s: infer_schema(self.project, self.state, n, s))
        return plan.flow(name)

    def _replayable(self, flow: FlowPlan, letters: pa.Table) -> pa.Table:
        """The letters that can be replayed; the others are refused."""
        if letters.num_rows and has_state(flow):
            self._refused.append(RefusedLetters(flow.name, letters.num_rows, self._stateful(flow, letters)))
            return letters.slice(0, 0)
        letters = self._of_finished_batches(flow, letters)
        streams = {stream.name: stream for stream in flow.streams()}
        sinks = {step.id: step.sink for step in flow.sinks}
        steps = {step.id for step in flow.steps()}
        replayable = [letters.slice(0, 0)]
        for name in pc.unique(letters["stream"]).to_pylist():
            mine = letters.filter(pc.equal(letters["stream"], name)).sort_by("_row")
            if name in streams:
                replayable.append(self._complete_records(flow, streams[name], mine))
            elif name in steps:
                replayable.append(self._complete_rows(flow, name, mine))
            else:
                why = _no_target(f"flow '{flow.name}' no longer reads stream '{name}'")
                why = _refused_by(sinks[name]) if name in sinks else why
                self._refused.append(RefusedLetters(flow.name, mine.num_rows, why))
        return pa.concat_tables(replayable)

    def _of_finished_batches(self, flow: FlowPlan, letters: pa.Table) -> pa.Table:
        """The letters of finished batches. A batch that runs again may process the record itself."""
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

    def _complete_records(self, flow: FlowPlan, stream: StreamInput, letters: pa.Table) -> pa.Table:
        """The letters that have the bytes of the record and the metadata columns that the flow uses."""
        with_bytes: list[bool] = []
        with_metadata: list[bool] = []
        for part in self.store.fetch(letters, ["value", "position", "metadata"]):
            usable = pc.is_valid(part["value"]) if stream.spec.format else pa.repeat(pa.scalar(False), part.num_rows)
            with_bytes += usable.to_pylist()
            with_metadata += _has_metadata(stream, part)
        without = with_bytes.count(False)
        if without:
            self._refused.append(RefusedLetters(flow.name, without, _no_bytes(stream)))
        complete = [a and b for a, b in zip(with_bytes, with_metadata, strict=True)]
        if complete.count(True) < len(complete) - without:
            incomplete = len(complete) - without - complete.count(True)
            self._refused.append(RefusedLetters(flow.name, incomplete, _no_metadata(flow, stream)))
        return letters.filter(pa.array(complete, pa.bool_()))

    def _complete_rows(self, flow: FlowPlan, step: str, letters: pa.Table) -> pa.Table:
        """The letters of a step that have the row; they are replayed from that step on."""
        parts = self.store.fetch(letters, ["value"])
        has_row = [valid for part in parts for valid in pc.is_valid(part["value"]).to_pylist()]
        if not all(has_row):
            self._refused.append(RefusedLetters(flow.name, has_row.count(False), _no_row(step)))
        return letters.filter(pa.array(has_row, pa.bool_()))

    def _stateful(self, flow: FlowPlan, letters: pa.Table) -> ProjectError:
        parts = self.store.fetch(letters, ["position"])
        positions = (json.loads(text) for part in parts for text in part["position"].to_pylist())
        return ProjectError(
            "replay-stateful",
            f"flow '{flow.name}' keeps state ({', '.join(flow.state) or 'a subquery'}): the window of a replayed "
            "record may already be closed",
            hint=f"rewind the flow to the oldest letter instead: {rewind_command(flow.name, positions)}",
            exit_code=Exit.CONFLICT,
        )


def has_state(flow: FlowPlan) -> bool:
    """Whether a row may depend on more than one record, also if the SQL is not valid for a stream."""
    texts = [flow.sql, *(item.sql for item in flow.all_inputs() if isinstance(item, FlowInput))]
    return bool(flow.state) or any(refusals(parse(text)) for text in texts)


def rewind_command(flow: str, positions: Iterable[dict[str, Any]]) -> str:
    """The command that rewinds a flow to the oldest of these positions."""
    oldest: dict[str, dict[str, int]] = {}
    for position in positions:
        if not {"topic", "partition", "offset"} <= position.keys():
            return f"headrace rewind {flow} --to earliest"
        offsets = oldest.setdefault(position["topic"], {})
        partition = str(position["partition"])
        offsets[partition] = min(position["offset"], offsets.get(partition, position["offset"]))
    return f"echo '{json.dumps(oldest)}' > oldest.json && headrace rewind {flow} --to oldest.json"


def _has_metadata(stream: StreamInput, letters: pa.Table) -> list[bool]:
    if not stream.metadata:
        return [True] * letters.num_rows
    position = stream.spec.source.position
    columns = zip(letters["position"].to_pylist(), letters["metadata"].to_pylist(), strict=True)
    return [
        all(
            name in json.loads(stored or "{}") or (name in position and name.lstrip("_") in json.loads(place))
            for name in stream.metadata
        )
        for place, stored in columns
    ]


def _in_flight(flow: FlowPlan, batch: int) -> ProjectError:
    return ProjectError(
        "replay-in-flight",
        f"batch {batch} of flow '{flow.name}', which refused these records, is unfinished: it may process them itself",
        hint=f"finish it (headrace run {flow.name} --until-caught-up), then replay",
        exit_code=Exit.CONFLICT,
    )


def _refused_by(sink: Sink) -> ProjectError:
    return ProjectError(
        "replay-sink-letter",
        f"these rows have passed the flow, and {sink.label} refused them: there is no record to replay",
        hint="fix the SQL or the target, then rewind the flow; or write the rows yourself and discard the letters",
    )


def _no_target(message: str) -> ProjectError:
    return ProjectError(
        "replay-gone", message, hint="restore it, or discard the letters: headrace dead-letters discard"
    )


def _no_bytes(stream: StreamInput) -> ProjectError:
    return ProjectError(
        "replay-no-bytes",
        f"these letters of stream '{stream.name}' have no bytes of a record, so there is nothing to replay",
        hint="rewind the flow instead; `on_error: dead_letter` stores the bytes for streams that have a format",
    )


def _no_row(step: str) -> ProjectError:
    return ProjectError(
        "replay-no-bytes",
        f"these letters of step '{step}' have no row, so there is nothing to replay",
        hint="rewind the flow instead",
    )


def _no_metadata(flow: FlowPlan, stream: StreamInput) -> ProjectError:
    return ProjectError(
        "replay-metadata",
        f"flow '{flow.name}' uses {', '.join(stream.metadata)} of stream '{stream.name}', which these letters do not "
        "have: the SQL did not use them at that time",
        hint="rewind the flow instead, or remove those columns from its SQL",
    )
