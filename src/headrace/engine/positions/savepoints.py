"""Savepoints: copies of a stopped flow's checkpoint, including its state, to which a rewind can return."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from headrace.core.context import Context
from headrace.core.errors import Exit, ProjectError, did_you_mean
from headrace.core.files.state_files import StatePath, atomic_folder, copy_tree, remove_atomically, write_atomically
from headrace.engine.positions.positions import committed_positions, input_positions
from headrace.engine.state.generations import Generation
from headrace.engine.state.state import StateDir
from headrace.engine.state.utc import utc_now
from headrace.plan.model import FlowPlan

_INFO = "savepoint.json"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,59}")
_RESERVED = re.compile(r"earliest|latest|g\d+-.*")


@dataclass(frozen=True)
class SavepointInfo:
    """The description of a savepoint, stored with the copy."""

    name: str
    flow: str
    generation: str
    batch: int
    """The last committed batch, whose rows are in the sinks."""
    positions: Mapping[str, Any]
    """The position of each input, by name."""
    sinks: Mapping[str, str]
    """The sinks with the rows of the batch, each with its batch mark."""
    created_at: str = field(default_factory=lambda: utc_now("seconds", "+00:00"))


@dataclass(frozen=True)
class Savepoint:
    """One savepoint on disk: a copy of the folder of a generation."""

    folder: StatePath

    @property
    def info(self) -> SavepointInfo:
        return SavepointInfo(**json.loads((self.folder / _INFO).read_text(encoding="utf-8")))

    @property
    def generation(self) -> Generation:
        """The copied generation. Its manifest has the id of the original."""
        return Generation(self.folder)


@dataclass(frozen=True)
class Savepoints:
    """The savepoints of one flow."""

    state: StateDir
    flow: str

    @property
    def folder(self) -> StatePath:
        return self.state.generations(self.flow).folder / "savepoints"

    def all(self) -> list[Savepoint]:
        """All complete savepoints, oldest first."""
        savepoints = [Savepoint(file.parent) for file in self.folder.glob(f"[!.]*/{_INFO}")]
        return sorted(savepoints, key=lambda savepoint: (savepoint.info.created_at, savepoint.info.name))

    def find(self, name: str) -> Savepoint | None:
        return next((savepoint for savepoint in self.all() if savepoint.info.name == name), None)

    def require(self, name: str) -> Savepoint:
        """The savepoint with this name; an error lists the existing ones."""
        savepoint = self.find(name)
        if savepoint is None:
            raise ProjectError(
                "unknown-savepoint",
                f"flow '{self.flow}' has no savepoint '{name}'",
                hint=did_you_mean(name, [each.info.name for each in self.all()], "savepoints"),
                exit_code=Exit.NOT_FOUND,
            )
        return savepoint

    def create(self, flow: FlowPlan, context: Context, name: str | None = None) -> Savepoint:
        """Copy the checkpoint of a stopped flow. The folder appears complete or not at all."""
        name = name or f"s{datetime.now(UTC):%Y%m%d-%H%M%S}"
        self._check_name(name)
        if flow.tables():
            raise ProjectError(
                "savepoint-of-view",
                f"flow '{flow.name}' is a view: the history of its tables is not kept, so it could not be restored",
                hint=f"a view can be rebuilt from its tables at any time: headrace run --new-generation {flow.name}",
                exit_code=Exit.CONFLICT,
            )
        generation = self.state.generations(flow.name).current()
        record = None if generation is None else generation.checkpoint.committed()
        if generation is None or record is None:
            raise ProjectError(
                "no-position",
                f"flow '{flow.name}' has no committed batch, so there is nothing to save",
                hint=f"run it first: headrace run {flow.name} --until-caught-up",
                exit_code=Exit.CONFLICT,
            )
        if generation.checkpoint.in_flight():
            raise ProjectError(
                "batch-in-flight",
                f"a batch of flow '{flow.name}' is unfinished: some of its sinks may have its rows, others not",
                hint=f"finish it first: headrace run {flow.name} --until-caught-up",
                exit_code=Exit.CONFLICT,
            )
        sinks = {step.id: f"headrace.{flow.name}.{generation.id}.{step.id}" for step in flow.sinks}
        positions = {k: v for k, v in _positions(flow, generation, context).items() if v is not None}
        info = SavepointInfo(name, flow.name, generation.id, record.batch_id, positions, sinks)
        return self._store(generation, info)

    def _store(self, generation: Generation, info: SavepointInfo) -> Savepoint:
        with atomic_folder(self.folder / info.name) as draft:
            copy_tree(generation.checkpoint_folder, draft / "checkpoint")
            Generation(draft).describe(generation.manifest)
            write_atomically(draft / _INFO, (json.dumps(asdict(info), indent=1) + "\n").encode())
        return Savepoint(self.folder / info.name)

    def delete(self, name: str) -> None:
        """Delete a savepoint. Generations that were started from it have their own copies."""
        remove_atomically(self.require(name).folder, _INFO)

    def _check_name(self, name: str) -> None:
        if not _NAME.fullmatch(name) or _RESERVED.fullmatch(name):
            raise ProjectError(
                "bad-savepoint-name",
                f"'{name}' is not a valid name for a savepoint",
                hint="a letter, then letters, digits, '_', '.' and '-'; not earliest, latest or a generation's id",
                exit_code=Exit.USAGE,
            )
        if (self.folder / name / _INFO).exists():
            raise ProjectError(
                "savepoint-exists",
                f"flow '{self.flow}' already has a savepoint '{name}'",
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
