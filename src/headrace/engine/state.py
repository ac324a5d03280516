"""Where a flow keeps what must survive: its generations, their checkpoints, the schemas it was started with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.core.context import Context
from headrace.core.errors import Exit, ProjectError
from headrace.engine.files import HeldError, holder_of, holding
from headrace.engine.generations import Generation, Generations


@dataclass(frozen=True)
class StateDir:
    """The state folder of a project."""

    root: Path
    candidates: frozenset[str] = frozenset()
    """Flows that are looked at from their candidate: it is what is current here."""

    def beside(self, flow: str) -> StateDir:
        """The same folder, with the candidate of a flow as its current generation."""
        return replace(self, candidates=self.candidates | {flow})

    @staticmethod
    def of(context: Context) -> StateDir:
        """The state folder of the project a context belongs to."""
        if "://" in context.state:
            raise ProjectError(
                "state-not-local",
                f"state is kept in a folder, and '{context.state}' is none",
                hint="name a folder; on a cluster, one that all nodes have mounted",
            )
        return StateDir(Path(context.state))

    @property
    def logs(self) -> Path:
        """What the engine's JVM says."""
        return self.root / "logs"

    @property
    def dead_letters(self) -> Path:
        """Records that could not be processed."""
        return self.root / "dead_letters"

    @property
    def replays(self) -> Path:
        """Replays of dead letters that were begun and not finished."""
        return self.root / "replays"

    @property
    def late(self) -> Path:
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

    def schema_file(self, stream: str) -> Path:
        """The inferred columns of a stream, fixed when they were first needed."""
        return self.root / "schemas" / f"{stream}.ddl"

    def holder(self) -> int | None:
        """The process that holds the folder, None when it is free (0 when the process has not said its id yet)."""
        return holder_of(self.root / "engine.lock")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder for this engine alone."""
        with ExitStack() as held:
            try:
                held.enter_context(holding(self.root / "engine.lock"))
            except HeldError as other:
                raise ProjectError(
                    "state-in-use",
                    f"another engine (pid {other.args[0] or 'unknown'}) runs on the state folder {self.root}",
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
