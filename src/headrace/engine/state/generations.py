"""The generations of a flow: one life each of its checkpoint, described by a manifest."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from headrace.core.files.state_files import StatePath, remove_atomically, remove_tree, write_atomically
from headrace.engine.state.checkpoints import Checkpoint

MANIFEST = "manifest.json"
"""The file that makes a folder a generation."""

Pointer = Literal["current", "candidate"]


@dataclass(frozen=True)
class GenerationManifest:
    """What a generation was begun with. Written once, before its first batch."""

    generation: str
    reason: str = "first start"
    """Why it was made, in words: "first start", "rewind to earliest", "changed SQL" …"""
    parent: str | None = None
    """The generation before it."""
    created_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    start: Mapping[str, Any] = field(default_factory=dict)
    """Where each stream begins, by its name; a stream that is missing begins where its source says."""
    pins: Mapping[str, str] = field(default_factory=dict)
    """What Spark pins at batch 0, such as the state provider and the number of state partitions."""
    shape: Mapping[str, Any] = field(default_factory=dict)
    """What the flow was when the generation began, for comparison with what it is now."""
    topics: Mapping[str, str] = field(default_factory=dict)
    """The identity of each topic read, by stream and topic: a recreated topic has another one."""
    base: Mapping[str, Any] = field(default_factory=dict)
    """The last batch of an earlier generation that this one goes on from: `generation` and `batch`; empty for none."""
    history: Mapping[str, Any] = field(default_factory=dict)
    """What is read before the source itself, by stream: see engine/inputs/backfill.py."""
    query: str | None = None
    """Spark's name of the query that the checkpoint belongs to, once it has been started."""


@dataclass(frozen=True)
class Generation:
    """One generation on disk."""

    folder: StatePath

    @property
    def id(self) -> str:
        """Its name in every batch mark."""
        return self.folder.name

    @property
    def checkpoint_folder(self) -> StatePath:
        """Where Spark keeps positions and state."""
        return self.folder / "checkpoint"

    @property
    def checkpoint(self) -> Checkpoint:
        """Positions and batches, read without Spark."""
        return Checkpoint(self.checkpoint_folder)

    @property
    def manifest(self) -> GenerationManifest:
        """What it was begun with."""
        return GenerationManifest(**json.loads((self.folder / MANIFEST).read_text(encoding="utf-8")))

    @property
    def definition(self) -> StatePath:
        """The project as it was when the generation was last started; not there for one of an older version."""
        return self.folder / "definition.yaml"

    def define(self, text: str) -> None:
        """Keep what the generation is run as, so that it can go on after the project was changed."""
        content = text.encode()
        if not self.definition.is_file() or self.definition.read_bytes() != content:
            write_atomically(self.definition, content, private=True)

    def describe(self, manifest: GenerationManifest) -> None:
        """Put the manifest in place."""
        write_atomically(self.folder / MANIFEST, (json.dumps(asdict(manifest), indent=1) + "\n").encode())


@dataclass(frozen=True)
class Generations:
    """All generations of one flow. `current` is the one that runs; switching to another is one write.

    A second one may be built beside it, the candidate. Seen from its `pointer`, that one is the current.
    """

    folder: StatePath
    pointer: Pointer = "current"

    def current(self) -> Generation | None:
        """The one that runs, or None before the first start."""
        return self._at(self.pointer)

    def candidate(self) -> Generation | None:
        """The one that is built beside the current one, if there is one."""
        found = self._at("candidate")
        return None if found is None or found == self._at("current") else found

    def _at(self, pointer: Pointer) -> Generation | None:
        try:
            return Generation(self.folder / (self.folder / pointer).read_text(encoding="utf-8").strip())
        except FileNotFoundError:
            return None

    def all(self) -> list[Generation]:
        """All that are kept, oldest first."""
        manifests = self.folder.glob(f"*/{MANIFEST}")
        return sorted((Generation(file.parent) for file in manifests), key=lambda one: _number(one.id))

    def find(self, id: str) -> Generation | None:
        """The one of this name."""
        return next((one for one in self.all() if one.id == id), None)

    def lineage(self) -> list[tuple[Generation, int | None]]:
        """The current generation and those it goes on from, each with the last batch that counts (None: all)."""
        found: list[tuple[Generation, int | None]] = []
        one, last = self.current(), None
        while one is not None:
            found.append((one, last))
            base = one.manifest.base
            one, last = (self.find(base["generation"]), base["batch"]) if base else (None, None)
        return found

    def make(self, reason: str = "first start", **known: Any) -> Generation:
        """A new generation with a name of its own; it runs only after `switch`."""
        parent = self._at("current")
        number = 1 + max((_number(one.id) for one in self.all()), default=0)
        generation = Generation(self.folder / f"g{number}-{secrets.token_hex(3)}")
        generation.describe(GenerationManifest(generation.id, reason, parent.id if parent else None, **known))
        return generation

    def switch(self, to: Generation) -> None:
        """Let the flow go on with this generation."""
        write_atomically(self.folder / self.pointer, to.id.encode())

    def put_beside(self, candidate: Generation | None) -> None:
        """Let this one be built beside the current one; None: no longer any."""
        if candidate is None:
            (self.folder / "candidate").unlink(missing_ok=True)
        else:
            write_atomically(self.folder / "candidate", candidate.id.encode())

    def remove(self, generation: Generation) -> None:
        """Delete one, and the history that no other reads. A reader sees all of it or nothing."""
        histories = _histories(generation) - {
            name for one in self.all() if one != generation for name in _histories(one)
        }
        remove_atomically(generation.folder, MANIFEST)
        for name in histories:
            remove_tree(self.folder / "history" / name)


def _histories(generation: Generation) -> set[str]:
    """The folders of history that were made for a generation, or for the one whose checkpoint it is a copy of."""
    return {one["folder"] for one in generation.manifest.history.values() if not one.get("skipped")}


def _number(generation: str) -> int:
    return int(generation.removeprefix("g").partition("-")[0])
