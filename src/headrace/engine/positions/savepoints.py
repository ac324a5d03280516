"""Savepoints: copies of a stopped flow's checkpoint, with its state, that a rewind can go back to."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from headrace.core.context import Context
from headrace.core.errors import Exit, ProjectError, did_you_mean
from headrace.core.files.state_files import StatePath, appearing, copy_tree, vanish, write_atomically
from headrace.engine.positions.positions import committed_positions, input_positions
from headrace.engine.state.generations import Generation
from headrace.engine.state.state import StateDir
from headrace.engine.state.utc import utc_now
from headrace.plan.model import FlowPlan

_NOTE = "savepoint.json"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,59}")
_TAKEN = re.compile(r"earliest|latest|g\d+-.*")


@dataclass(frozen=True)
class SavepointInfo:
    """What is written down beside the copy."""

    name: str
    flow: str
    generation: str
    batch: int
    """The last batch whose rows are in the sinks."""
    positions: Mapping[str, Any]
    """Where each input was, by its name."""
    sinks: Mapping[str, str]
    """The sinks that had the batch, each with its mark there."""
    created_at: str = field(default_factory=lambda: utc_now("seconds", "+00:00"))


@dataclass(frozen=True)
class Savepoint:
    """One savepoint on disk: the folder of a generation as it was."""

    folder: StatePath

    @property
    def note(self) -> SavepointInfo:
        """What is known about it."""
        return SavepointInfo(**json.loads((self.folder / _NOTE).read_text(encoding="utf-8")))

    @property
    def generation(self) -> Generation:
        """The copy; its manifest bears the name of the original."""
        return Generation(self.folder)


@dataclass(frozen=True)
class Savepoints:
    """The savepoints of one flow."""

    state: StateDir
    flow: str

    @property
    def folder(self) -> StatePath:
        """Where they are."""
        return self.state.generations(self.flow).folder / "savepoints"

    def all(self) -> list[Savepoint]:
        """All that are whole, oldest first."""
        found = [Savepoint(file.parent) for file in self.folder.glob(f"[!.]*/{_NOTE}")]
        return sorted(found, key=lambda one: (one.note.created_at, one.note.name))

    def find(self, name: str) -> Savepoint | None:
        """The one of this name."""
        return next((one for one in self.all() if one.note.name == name), None)

    def require(self, name: str) -> Savepoint:
        """The one of this name; an error lists those there are."""
        found = self.find(name)
        if found is None:
            raise ProjectError(
                "unknown-savepoint",
                f"flow '{self.flow}' has no savepoint '{name}'",
                hint=did_you_mean(name, [one.note.name for one in self.all()], "savepoints"),
                exit_code=Exit.NOT_FOUND,
            )
        return found

    def create(self, flow: FlowPlan, context: Context, name: str | None = None) -> Savepoint:
        """Copy the checkpoint of a stopped flow. The folder appears whole or not at all."""
        chosen = name or f"s{datetime.now(UTC):%Y%m%d-%H%M%S}"
        self._check_name(chosen)
        if flow.tables():
            raise ProjectError(
                "savepoint-of-view",
                f"flow '{flow.name}' is a view: the past of its tables is not kept for ever, so it could not go back",
                hint=f"it can be built anew from its tables at any time: headrace run --new-generation {flow.name}",
                exit_code=Exit.CONFLICT,
            )
        generation = self.state.generations(flow.name).current()
        record = None if generation is None else generation.checkpoint.committed()
        if generation is None or record is None:
            raise ProjectError(
                "no-position",
                f"flow '{flow.name}' has finished no batch yet, so there is nothing to save",
                hint=f"headrace run {flow.name} --until-caught-up",
                exit_code=Exit.CONFLICT,
            )
        if generation.checkpoint.in_flight():
            raise ProjectError(
                "batch-in-flight",
                f"a batch of flow '{flow.name}' was begun and not finished: some of its sinks may have it, others not",
                hint=f"finish it first: headrace run {flow.name} --until-caught-up",
                exit_code=Exit.CONFLICT,
            )
        sinks = {step.id: f"headrace.{flow.name}.{generation.id}.{step.id}" for step in flow.sinks}
        positions = {k: v for k, v in _positions(flow, generation, context).items() if v is not None}
        note = SavepointInfo(chosen, flow.name, generation.id, record.batch_id, positions, sinks)
        return self._put(generation, note)

    def _put(self, generation: Generation, note: SavepointInfo) -> Savepoint:
        with appearing(self.folder / note.name) as draft:
            copy_tree(generation.checkpoint_folder, draft / "checkpoint")
            Generation(draft).describe(generation.manifest)
            write_atomically(draft / _NOTE, (json.dumps(asdict(note), indent=1) + "\n").encode())
        return Savepoint(self.folder / note.name)

    def delete(self, name: str) -> None:
        """Remove one. The generations that began with it have copies of their own."""
        vanish(self.require(name).folder, _NOTE)

    def _check_name(self, name: str) -> None:
        if not _NAME.fullmatch(name) or _TAKEN.fullmatch(name):
            raise ProjectError(
                "bad-savepoint-name",
                f"'{name}' cannot be the name of a savepoint",
                hint="a letter, then letters, digits, '_', '.' and '-'; not earliest, latest or that of a generation",
                exit_code=Exit.USAGE,
            )
        if (self.folder / name / _NOTE).exists():
            raise ProjectError(
                "savepoint-exists",
                f"flow '{self.flow}' has a savepoint '{name}' already",
                hint=f"choose another name, or: headrace savepoint delete {self.flow} {name}",
                exit_code=Exit.CONFLICT,
            )


def _positions(flow: FlowPlan, generation: Generation, context: Context) -> Mapping[str, Any]:
    inputs = input_positions(flow, context)
    try:
        return committed_positions(inputs, generation)
    finally:
        for known in inputs.values():
            known.close()
