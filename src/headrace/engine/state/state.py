"""The state folder of a project: generations and checkpoints of flows, inferred schemas, dead letters, locks."""

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
    """The state folder of a project, local or on an object store."""

    root: StatePath
    nearby: Path = Path(".headrace")
    """The local folder for logs and status, if the state is on an object store."""
    fence: Fence = field(default_factory=Fence, compare=False, repr=False)
    candidates: frozenset[str] = frozenset()
    """Flows whose candidate generation counts as the current one here."""

    def with_candidate(self, flow: str) -> StateDir:
        """The same folder, with the candidate of a flow as its current generation."""
        return replace(self, candidates=self.candidates | {flow})

    @staticmethod
    def of(context: Context) -> StateDir:
        return StateDir(context.state_path, context.root / ".headrace")

    @property
    def local(self) -> Path:
        """The folder for files that only this machine needs: logs, the status of its engine."""
        return self.nearby if isinstance(self.root, ObjectPath) else self.root

    @property
    def logs(self) -> Path:
        return self.local / "logs"

    @property
    def dead_letters(self) -> StatePath:
        return self.root / "dead_letters"

    @property
    def replays(self) -> StatePath:
        """Replays of dead letters that were started and not completed."""
        return self.root / "replays"

    @property
    def late(self) -> StatePath:
        return self.root / "late"

    def generations(self, flow: str) -> Generations:
        return Generations(self.root / "flows" / flow, "candidate" if flow in self.candidates else "current")

    def current(self, flow: str) -> Generation:
        """The current generation of a flow; the first one is created on demand."""
        generations = self.generations(flow)
        current = generations.current()
        if current is None:
            current = generations.make()
            generations.switch(current)
        return current

    def require_no_candidate(self, flow: str) -> None:
        """Refuse an operation that would break a candidate generation."""
        candidate = self.generations(flow).candidate()
        if candidate is not None:
            raise ProjectError(
                "candidate-exists",
                f"flow '{flow}' has a candidate generation {candidate.id}, which is still being built",
                hint=f"complete it: headrace run; or abandon it: headrace generations abandon {flow}",
                exit_code=Exit.CONFLICT,
            )

    def schema_file(self, stream: str) -> StatePath:
        return self.root / "schemas" / f"{stream}.ddl"

    def holder(self) -> Owner | None:
        """The engine that uses the folder; None if it is free."""
        return holder_of(self.root / "engine.lock")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder for this engine."""
        with ExitStack() as lock:
            try:
                lock.enter_context(holding(self.root / "engine.lock", self.fence))
            except HeldError as error:
                raise ProjectError(
                    "state-in-use",
                    f"another engine ({error.owner}) uses the state folder {self.root}",
                    hint="stop it first, or choose another folder with --set state=DIR",
                    exit_code=Exit.CONFLICT,
                ) from error
            except OSError as error:
                raise ProjectError(
                    "state-unwritable",
                    f"the state folder {self.root} cannot be written: {error.strerror}",
                    hint="make it writable, or choose another with 'state:' in headrace.yaml",
                ) from error
            yield
