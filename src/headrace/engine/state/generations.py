"""The generations of a flow. Each has its own checkpoint and a manifest that describes it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from headrace.core.files.state_files import StatePath, remove_atomically, remove_tree, write_atomically
from headrace.engine.state.checkpoints import Checkpoint
from headrace.engine.state.utc import utc_now

MANIFEST = "manifest.json"
"""The file that makes a folder a generation."""

Pointer = Literal["current", "candidate"]


@dataclass(frozen=True)
class GenerationManifest:
    """The definition of a generation, written before its first batch."""

    generation: str
    reason: str = "first start"
    """Why it was created, in words: "first start", "rewind to earliest", "changed SQL" …"""
    parent: str | None = None
    """The previous generation."""
    created_at: str = field(default_factory=lambda: utc_now("seconds", "+00:00"))
    start: Mapping[str, Any] = field(default_factory=dict)
    """The start position of each stream, by name; other streams begin at the default of their source."""
    pins: Mapping[str, str] = field(default_factory=dict)
    """The settings that Spark fixes at batch 0, such as the state provider and the number of state partitions."""
    shape: Mapping[str, Any] = field(default_factory=dict)
    """The definition of the flow at the start of the generation, to detect changes."""
    topics: Mapping[str, str] = field(default_factory=dict)
    """The identity of each topic, by stream and topic; a topic that is created again has another identity."""
    base: Mapping[str, Any] = field(default_factory=dict)
    """The last batch of an earlier generation from which this one continues: `generation` and `batch`; or empty."""
    history: Mapping[str, Any] = field(default_factory=dict)
    """The backfill that is read before the live stream, by stream: see engine/inputs/backfill.py."""
    query: str | None = None
    """Spark's id of the query of the checkpoint, once it has been started."""


@dataclass(frozen=True)
class Generation:
    """One generation on disk."""

    folder: StatePath

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def checkpoint_folder(self) -> StatePath:
        return self.folder / "checkpoint"

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.checkpoint_folder)

    @property
    def manifest(self) -> GenerationManifest:
        return GenerationManifest(**json.loads((self.folder / MANIFEST).read_text(encoding="utf-8")))

    @property
    def definition(self) -> StatePath:
        """The project at the last start of the generation; missing in generations of an older version."""
        return self.folder / "definition.yaml"

    def define(self, text: str) -> None:
        """Store the project, so that the generation can still run after the project has changed."""
        content = text.encode()
        if not self.definition.is_file() or self.definition.read_bytes() != content:
            write_atomically(self.definition, content, private=True)

    def describe(self, manifest: GenerationManifest) -> None:
        write_atomically(self.folder / MANIFEST, (json.dumps(asdict(manifest), indent=1) + "\n").encode())


@dataclass(frozen=True)
class Generations:
    """All generations of one flow. `current` is the one that runs; a switch to another is one atomic write.

    A candidate generation can be built in parallel. With the pointer "candidate", `current()` returns
    the candidate, so that the same code can run it.
    """

    folder: StatePath
    pointer: Pointer = "current"

    def current(self) -> Generation | None:
        """The generation that runs; None before the first start."""
        return self._at(self.pointer)

    def candidate(self) -> Generation | None:
        candidate = self._at("candidate")
        return None if candidate is None or candidate == self._at("current") else candidate

    def _at(self, pointer: Pointer) -> Generation | None:
        try:
            return Generation(self.folder / (self.folder / pointer).read_text(encoding="utf-8").strip())
        except FileNotFoundError:
            return None

    def all(self) -> list[Generation]:
        """All generations, oldest first."""
        manifests = self.folder.glob(f"*/{MANIFEST}")
        return sorted((Generation(file.parent) for file in manifests), key=lambda generation: _number(generation.id))

    def find(self, id: str) -> Generation | None:
        return next((generation for generation in self.all() if generation.id == id), None)

    def lineage(self) -> list[tuple[Generation, int | None]]:
        """The current generation and those from which it continues, each with the last batch
        that the next one kept (None: all)."""
        lineage: list[tuple[Generation, int | None]] = []
        generation, last = self.current(), None
        while generation is not None:
            lineage.append((generation, last))
            base = generation.manifest.base
            generation, last = (self.find(base["generation"]), base["batch"]) if base else (None, None)
        return lineage

    def make(self, reason: str = "first start", **fields: Any) -> Generation:
        """Create a generation with a new id. It runs only after `switch`."""
        parent = self._at("current")
        number = 1 + max((_number(generation.id) for generation in self.all()), default=0)
        generation = Generation(self.folder / f"g{number}-{secrets.token_hex(3)}")
        generation.describe(GenerationManifest(generation.id, reason, parent.id if parent else None, **fields))
        return generation

    def switch(self, to: Generation) -> None:
        write_atomically(self.folder / self.pointer, to.id.encode())

    def set_candidate(self, candidate: Generation | None) -> None:
        if candidate is None:
            (self.folder / "candidate").unlink(missing_ok=True)
        else:
            write_atomically(self.folder / "candidate", candidate.id.encode())

    def remove(self, generation: Generation) -> None:
        """Delete a generation, and the history that no other uses. A reader sees the whole generation or nothing."""
        others = [other for other in self.all() if other != generation]
        histories = _histories(generation) - {name for other in others for name in _histories(other)}
        remove_atomically(generation.folder, MANIFEST)
        for name in histories:
            remove_tree(self.folder / "history" / name)


def _histories(generation: Generation) -> set[str]:
    """The history folders of a generation. A generation with a copied checkpoint uses those of the original."""
    histories = generation.manifest.history.values()
    return {history["folder"] for history in histories if not history.get("skipped")}


def _number(generation: str) -> int:
    return int(generation.removeprefix("g").partition("-")[0])
