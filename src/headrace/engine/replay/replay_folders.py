"""Replays on disk: a folder per replay, from its start until it is finished."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.files.state_files import StatePath, atomic_folder, remove_atomically, remove_tree, write_atomically
from headrace.engine.letters.dead_letter_audit import keys_of
from headrace.engine.letters.dead_letter_index import DeadLetterStore
from headrace.engine.state.parquet_files import read_tables, write_parts
from headrace.plan.model import FlowPlan

# the file that makes a folder a replay
_INFO = "replay.json"
_IDS_PER_CHUNK = 10_000


@dataclass(frozen=True)
class FlowReplay:
    """Dead letters of one flow that are replayed together."""

    id: str
    flow: FlowPlan
    folder: StatePath
    letters: int
    chosen: pa.Table | None
    """The letters as rows of the dead letter index; None if the replay was started before."""

    @property
    def is_begun(self) -> bool:
        """Whether it was started and is not finished."""
        return (self.folder / _INFO).is_file()

    @property
    def begun_at(self) -> datetime:
        return datetime.fromisoformat(json.loads((self.folder / _INFO).read_bytes())["begun_at"])

    @property
    def letters_file(self) -> StatePath:
        return letters_file(self.folder)

    @property
    def generation(self) -> str:
        """The generation in every batch mark of the replay."""
        return f"replay-{self.id}"


@dataclass(frozen=True)
class UnfinishedReplays:
    """Replays that were started and are not finished."""

    folder: StatePath

    def of(self, flow: str) -> list[tuple[StatePath, int]]:
        """Folder and number of letters of each replay of a flow, oldest first."""
        mine = [(info["begun_at"], folder, info["letters"]) for folder, info in self._all() if info["flow"] == flow]
        return [(folder, letters) for _, folder, letters in sorted(mine, key=lambda row: (row[0], str(row[1])))]

    def flows(self) -> set[str]:
        return {info["flow"] for _, info in self._all()}

    def holds(self, flow: str, letters: pa.Table) -> bool:
        """Whether one of these letters is part of an unfinished replay of the flow."""
        mine = letters.filter(pc.equal(letters["flow"], flow))
        return any(pc.any(pc.is_in(mine["id"], _ids(folder))).as_py() for folder, _ in self.of(flow))

    def without(self, flow: str, letters: pa.Table) -> pa.Table:
        """The letters that are not part of an unfinished replay of the flow."""
        for folder, _ in self.of(flow):
            letters = letters.filter(pc.invert(pc.is_in(letters["id"], _ids(folder))))
        return letters

    def _all(self) -> Iterator[tuple[StatePath, dict[str, Any]]]:
        for file in self.folder.glob(f"*/{_INFO}"):
            # the folder of a replay that did not start completely is hidden
            if not file.parent.name.startswith("."):
                yield file.parent, json.loads(file.read_text(encoding="utf-8"))

    def begin(self, replay: FlowReplay, store: DeadLetterStore) -> None:
        """Copy the letters with their bytes to the folder of the replay, which appears complete or not at all."""
        assert replay.chosen is not None
        for remainder in self.folder.glob(".*"):
            remove_tree(remainder)
        with atomic_folder(replay.folder) as draft:
            write_parts(letters_file(draft), store.schema, store.fetch(replay.chosen))
            info = {"flow": replay.flow.name, "letters": replay.letters, "begun_at": datetime.now(UTC).isoformat()}
            write_atomically(draft / _INFO, json.dumps(info).encode())

    def end(self, replay: FlowReplay) -> None:
        """Delete the folder in one step: the replay is finished, or no sink has any of its rows."""
        remove_atomically(replay.folder, _INFO)


def letters_file(folder: StatePath) -> StatePath:
    return folder / "letters.parquet"


def _ids(folder: StatePath) -> pa.Array:
    return read_tables([letters_file(folder)], None, ["id"])["id"].combine_chunks()


def replay_id(letters: pa.Table) -> str:
    """An id that depends only on the letters, so that sinks recognise a replay even if its folder was lost."""
    keys = keys_of(letters["flow"], letters["generation"], letters["id"])
    ordered = keys.take(pc.sort_indices(keys))
    digest = hashlib.sha256()
    for start in range(0, len(ordered), _IDS_PER_CHUNK):
        digest.update("\n".join([*ordered.slice(start, _IDS_PER_CHUNK).to_pylist(), ""]).encode())
    return digest.hexdigest()[:12]
