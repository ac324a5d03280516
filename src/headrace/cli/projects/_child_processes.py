"""Child processes of `headrace run`, next to its engine.

The engine and its children fail independently. A child that dies is restarted; one that cannot run is reported and
retried from time to time. Its output is in a file in `logs` of the state folder.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from headrace.cli.terminal.output import printer
from headrace.core.processes.children import Child, describe_exit

_END_SECONDS = 15.0
_TAIL_BYTES = 2000


class SupervisedChild:
    """Keeps a process alive from `with` until its end."""

    about: ClassVar[str]
    """Its name in the notes of the engine."""
    name: ClassVar[str]
    module: ClassVar[str]
    failing: ClassVar[str]
    """The message while the process is down."""
    recovered: ClassVar[str]

    def __init__(self, environment: Mapping[str, str], log: Path) -> None:
        self.note: Callable[[str, str], None] = lambda _about, _text: None
        """Adds a note to the engine's status."""
        self._log = log
        self.child = Child(self.name, self.module, environment, log)
        self._reported: object = None
        self._failing = False
        self._read = 0

    def __enter__(self) -> Self:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._read = self._log.stat().st_size if self._log.exists() else 0
        self.child.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.child.ask_to_end()
        # after a second Ctrl-C do not wait: the children of the process end with it
        self.child.end(time.monotonic() + (0.0 if kind is KeyboardInterrupt else _END_SECONDS))

    def tend(self) -> None:
        """Restart the process if it died. Report failures and recovery."""
        code = self.child.tend()
        if code is not None:
            self._fail(self._reason(code))
        elif self.child.pid is not None:
            line = self.look()
            if line is not None:
                self._recover(line)

    def look(self) -> str | None:
        """Return a line for the user when the process works; None before."""
        raise NotImplementedError

    def _fail(self, reason: str) -> None:
        self._failing = True
        self.note(self.about, f"{self.failing}: {reason}")
        self._report(reason, f"{self.failing}, the flows continue: {reason}")

    def _recover(self, words: str) -> None:
        if self._failing:
            self._failing = False
            self.note(self.about, self.recovered)
        self._report((self.child.pid, words), words)

    def _report(self, key: object, text: str) -> None:
        if key != self._reported:
            self._reported = key
            printer.note(text)

    def _reason(self, code: int) -> str:
        """Return the last error that the process printed, else its exit code."""
        with self._log.open("rb") as log:
            size = self._log.stat().st_size
            log.seek(max(self._read, size - _TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
        self._read = size
        error = next((line for line in reversed(lines) if line.startswith("error[")), None)
        return error or f"the {self.name} {describe_exit(code)}, see {self._log}"
