"""Where a flow keeps what must survive: its generations, their checkpoints, the schemas it was started with."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.core.context import Context
from headrace.core.errors import Exit, ProjectError


@dataclass(frozen=True)
class StateDir:
    """The state folder of a project."""

    root: Path

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

    def generation(self, flow: str) -> str:
        """The id of the flow's current generation; the first one is made on demand."""
        pointer = self.root / "flows" / flow / "current"
        if pointer.is_file():
            return pointer.read_text(encoding="utf-8").strip()
        generation = f"g1-{secrets.token_hex(3)}"
        write_atomically(pointer, generation.encode())
        return generation

    def checkpoint(self, flow: str) -> Path:
        """Where Spark keeps the positions and state of the current generation."""
        return self.root / "flows" / flow / self.generation(flow) / "checkpoint"

    def schema_file(self, stream: str) -> Path:
        """The inferred columns of a stream, fixed when they were first needed."""
        return self.root / "schemas" / f"{stream}.ddl"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder for this engine alone; the operating system releases it even after kill -9."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            file = (self.root / "engine.lock").open("a+", encoding="utf-8")
        except OSError as error:
            raise ProjectError(
                "state-unwritable",
                f"the state folder {self.root} cannot be written: {error.strerror}",
                hint="make it writable, or choose another with 'state:' in headrace.yaml",
            ) from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                file.seek(0)
                raise ProjectError(
                    "state-in-use",
                    f"another engine (pid {file.read().strip() or 'unknown'}) runs on the state folder {self.root}",
                    hint="stop it first, or choose another folder with --set state=DIR",
                    exit_code=Exit.CONFLICT,
                ) from error
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield


def write_atomically(file: Path, content: bytes) -> None:
    """Write a small file so that readers see all of it or nothing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_name(f".{file.name}.{os.getpid()}")
    with scratch.open("wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    os.replace(scratch, file)
