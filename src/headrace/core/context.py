"""What a component may know about where it runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.core.positions import Position


@dataclass(frozen=True)
class Context:
    """The project a component belongs to: where its files are and where its state goes."""

    root: Path
    state: str

    def path(self, relative: str) -> str:
        """A path or URI of the project file, made absolute when it is a local path."""
        return relative if "://" in relative else str((self.root / relative).absolute())


@dataclass(frozen=True)
class ReadContext(Context):
    """How a source is read: by which stream, live or as it stands now, and how much per batch."""

    stream: str
    streaming: bool = True
    until_caught_up: bool = False
    max_records: int | None = None
    metadata: tuple[str, ...] | None = None
    """The metadata columns that will be used; None for all. Others may be left out or null."""
    start: Position | None = None
    """Where a new generation begins, instead of where the source's options say. Known batches go before it."""


@dataclass(frozen=True)
class Batch:
    """One micro-batch of one flow on its way into one sink.

    `generation` belongs in every "already written" mark: batch ids start again at 0 with a new generation.
    """

    flow: str
    generation: str
    batch_id: int
    sink: str
    output: str
    context: Context
