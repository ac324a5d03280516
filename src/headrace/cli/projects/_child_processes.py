"""Processes that `headrace run` keeps running next to its engine.

Neither fails with the other: one that dies is started again, and one that cannot run is told about and tried again from
time to time. What it prints is in a file of the state folder's `logs`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from headrace.cli.terminal.output import printer
from headrace.core.processes.children import Child, how

_END_SECONDS = 15.0
_SAID_BYTES = 2000


class SupervisedChild:
    """Keeps a process alive from `with` until its end."""

    about: ClassVar[str]
    """What the engine's notes call it."""
    name: ClassVar[str]
    module: ClassVar[str]
    failing: ClassVar[str]
    """What does not work while the process is down."""
    recovered: ClassVar[str]

    def __init__(self, environment: Mapping[str, str], log: Path) -> None:
        self.note: Callable[[str, str], None] = lambda _about, _text: None
        """Takes what the engine's status should say of it."""
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
        # a second Ctrl-C means: do not wait. Children of the process notice that it ended
        self.child.end(time.monotonic() + (0.0 if kind is KeyboardInterrupt else _END_SECONDS))

    def tend(self) -> None:
        """Restart it if it died. Report what is wrong, and when it works again."""
        code = self.child.tend()
        if code is not None:
            self._fail(self._reason(code))
        elif self.child.pid is not None:
            line = self.look()
            if line is not None:
                self._recover(line)

    def look(self) -> str | None:
        """A line for the user once it works; None before."""
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

    def _report(self, what: object, text: str) -> None:
        if what != self._reported:
            self._reported = what
            printer.note(text)

    def _reason(self, code: int) -> str:
        """The last error that it printed, else how it ended."""
        with self._log.open("rb") as log:
            size = self._log.stat().st_size
            log.seek(max(self._read, size - _SAID_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
        self._read = size
        error = next((line for line in reversed(lines) if line.startswith("error[")), None)
        return error or f"the {self.name} {how(code)}, see {self._log}"
