"""Where a flow keeps what must survive: its generations, their checkpoints, the schemas it was started with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from headrace.core.context import Context
from headrace.core.errors import Exit, ProjectError
from headrace.core.files.objects import ObjectPath
from headrace.core.files.state_files import StatePath
from headrace.engine.state.generations import Generation, Generations
from headrace.engine.state.lease import Owner
from headrace.engine.state.locks import Fence, HeldError, holder_of, holding


@dataclass(frozen=True)
class StateDir:
    """The state folder of a project: a local one, or one on an object store."""

    root: StatePath
    nearby: Path = Path(".headrace")
    """Where things are that need not survive, when the folder is not a local one."""
    fence: Fence = field(default_factory=Fence, compare=False, repr=False)
    candidates: frozenset[str] = frozenset()
    """Flows that are looked at from their candidate: it is what is current here."""

    def beside(self, flow: str) -> StateDir:
        """The same folder, with the candidate of a flow as its current generation."""
        return replace(self, candidates=self.candidates | {flow})

    @staticmethod
    def of(context: Context) -> StateDir:
        """The state folder of the project a context belongs to."""
        return StateDir(context.state_path, context.root / ".headrace")

    @property
    def local(self) -> Path:
        """The folder for what only this machine needs to know: logs, the status of its engine."""
        return self.nearby if isinstance(self.root, ObjectPath) else self.root

    @property
    def logs(self) -> Path:
        """What the engine's JVM says."""
        return self.local / "logs"

    @property
    def dead_letters(self) -> StatePath:
        """Records that could not be processed."""
        return self.root / "dead_letters"

    @property
    def replays(self) -> StatePath:
        """Replays of dead letters that were begun and not finished."""
        return self.root / "replays"

    @property
    def late(self) -> StatePath:
        """Rows that came too late for their windows."""
        return self.root / "late"

    def generations(self, flow: str) -> Generations:
        """All lives of a flow's checkpoint."""
        return Generations(self.root / "flows" / flow, "candidate" if flow in self.candidates else "current")

    def current(self, flow: str) -> Generation:
        """The flow's current generation; the first one is made on demand."""
        generations = self.generations(flow)
        current = generations.current()
        if current is None:
            current = generations.make()
            generations.switch(current)
        return current

    def require_no_candidate(self, flow: str) -> None:
        """Refuse what would take the ground from under a candidate."""
        candidate = self.generations(flow).candidate()
        if candidate is not None:
            raise ProjectError(
                "candidate-exists",
                f"generation {candidate.id} of flow '{flow}' is being built beside the current one",
                hint=f"let it be built: headrace run; or give it up: headrace generations abandon {flow}",
                exit_code=Exit.CONFLICT,
            )

    def schema_file(self, stream: str) -> StatePath:
        """The inferred columns of a stream, fixed when they were first needed."""
        return self.root / "schemas" / f"{stream}.ddl"

    def holder(self) -> Owner | None:
        """The process that holds the folder, None when it is free."""
        return holder_of(self.root / "engine.lock")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder for this engine alone."""
        with ExitStack() as held:
            try:
                held.enter_context(holding(self.root / "engine.lock", self.fence))
            except HeldError as other:
                raise ProjectError(
                    "state-in-use",
                    f"another engine ({other.owner}) runs on the state folder {self.root}",
                    hint="stop it first, or choose another folder with --set state=DIR",
                    exit_code=Exit.CONFLICT,
                ) from other
            except OSError as error:
                raise ProjectError(
                    "state-unwritable",
                    f"the state folder {self.root} cannot be written: {error.strerror}",
                    hint="make it writable, or choose another with 'state:' in headrace.yaml",
                ) from error
            yield
