"""The contexts that components run in: the project, a read, a batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from headrace.core.files.object_store import ObjectStore
from headrace.core.files.objects import ObjectPath
from headrace.core.files.state_files import StatePath, state_path
from headrace.core.options.log_topics import LogTopics
from headrace.core.positions import Position
from headrace.core.tallies.tally import Tally


@dataclass(frozen=True)
class Context:
    """The project of a component: where its files and its state are."""

    root: Path
    state: str
    store: ObjectStore = field(default=ObjectStore(), kw_only=True, repr=False)
    """The connection to object stores."""
    log: str | None = field(default=None, kw_only=True)
    """The folder of the logs of endpoints, if it is not in the state folder."""
    log_topics: LogTopics | None = field(default=None, kw_only=True, repr=False, compare=False)
    """The Kafka topics of these logs, if they are not files."""

    @property
    def state_path(self) -> StatePath:
        """The state folder, local or on an object store."""
        return state_path(self.state, self.store)

    @property
    def log_path(self) -> StatePath:
        """The folder of the logs of endpoints, local or on an object store."""
        return self.state_path / "log" if self.log is None else state_path(self.log, self.store)

    @property
    def local(self) -> Path:
        """The folder for files that only this machine needs."""
        state = self.state_path
        return state if isinstance(state, Path) else self.root / ".headrace"

    @property
    def state_store(self) -> ObjectStore | None:
        """The object store of the state; None if the state is in a local folder."""
        return self.store if isinstance(self.state_path, ObjectPath) else None

    def path(self, relative: str) -> str:
        """A path or URI of the project file, made absolute when it is a local path."""
        return relative if "://" in relative else str((self.root / relative).absolute())


@dataclass(frozen=True)
class ReadContext:
    """How a source is read: for which stream, continuously or once, and how much per batch."""

    context: Context
    stream: str
    streaming: bool = True
    until_caught_up: bool = False
    max_records: int | None = None
    metadata: tuple[str, ...] | None = None
    """The metadata columns that the flow uses; None for all. Others may be left out or null."""
    start: Position | None = None
    """Where a new generation begins, instead of where the source's options say. Batches in the checkpoint win."""
    held: bool = False
    """Whether it has to wait at its start, because history is read first."""

    def path(self, relative: str) -> str:
        return self.context.path(relative)


class Letters(Protocol):
    """The dead letters of a task of a sink: rows that the system behind it refuses. Pickled while empty."""

    def add(self, reason: str, detail: str, position: dict[str, Any], value: bytes | None) -> None:
        """Keep one row; its `position` is unique in the flow."""

    def flush(self) -> None:
        """Make the dead letters durable. Must happen before the task ends."""


@dataclass(frozen=True)
class Batch:
    """One micro-batch of one flow for one sink.

    `generation` belongs in every "already written" mark: batch ids start again at 0 with a new generation.
    """

    flow: str
    generation: str
    batch_id: int
    sink: str
    output: str
    context: Context
    letters: Letters | None = field(default=None, repr=False)
    """Keeps refused rows; without it, they fail the batch."""
    tally: Tally = field(default_factory=Tally, repr=False, compare=False)
    """Counts rows and bytes."""
