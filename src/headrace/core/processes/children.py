"""Processes that a node keeps alive: started again when they die, ended together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.core.backoff import Backoff
from headrace.core.errors import Exit

_BUDGET, _WITHIN_SECONDS = 8, 60.0
"""So many deaths within so long are forgiven."""
_BACKOFF = Backoff(first=0.25, longest=5.0)
_FINAL = {Exit.USAGE, Exit.CONFLICT}
"""A process that ends like this would do so again."""


@dataclass
class Child:
    """One process, with a process group of its own: what it starts in turn is ended with it."""

    name: str
    module: str
    environment: Mapping[str, str]
    log: Path | None = None
    """Where what it prints goes; None: where it goes here."""
    process: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    code: int | None = None
    """How it ended the last time; negative: by that signal."""
    _deaths: deque[float] = field(default_factory=deque)
    _due: float = 0.0

    def start(self) -> None:
        """Start it. Its standard input stays open as long as this process lives: see `lifeline`."""
        with ExitStack() as stack:
            output = None if self.log is None else stack.enter_context(self.log.open("ab"))
            self.process = subprocess.Popen(
                [sys.executable, "-m", self.module],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**os.environ, **self.environment},
                start_new_session=True,
            )

    @property
    def pid(self) -> int | None:
        """Its process id while it runs."""
        return self.process.pid if self.process is not None and self.process.poll() is None else None

    def tend(self) -> int | None:
        """Start it again if it has died and its time has come; the code of a death that was just noticed."""
        if self.process is None:
            if time.monotonic() >= self._due:
                self.restarts += 1
                self.start()
            return None
        code = self.process.poll()
        if code is None:
            return None
        self.end_group()
        self.code = code
        now = time.monotonic()
        self._deaths.append(now)
        while now - self._deaths[0] > _WITHIN_SECONDS:
            self._deaths.popleft()
        self._due = now + _BACKOFF.pause(len(self._deaths) - 1)
        self.process = None
        return code

    @property
    def hopeless(self) -> bool:
        """Whether starting it again makes no sense."""
        return self.code in _FINAL or len(self._deaths) > _BUDGET

    def warn(self) -> None:
        """Tell it that it will be asked to end."""
        self._signal(signal.SIGUSR1)

    def ask_to_end(self) -> None:
        """Ask it to end."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def end(self, deadline: float) -> None:
        """Wait for its end, and make one at the deadline."""
        if self.process is None:
            return
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, deadline - time.monotonic()))
        self.end_group()
        self.process.wait()

    def end_group(self) -> None:
        """End whatever is left of it and of what it has started."""
        self._signal(signal.SIGKILL)
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()

    def _signal(self, number: signal.Signals) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)

    def to_json(self) -> dict[str, Any]:
        """For the node's file."""
        return {"name": self.name, "pid": self.pid, "restarts": self.restarts, "last_exit": self.code}


def how(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"ended with {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
