"""Supervised child processes: restarted when they die, ended together."""

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
"""A child is given up when it dies more often than this within this many seconds."""
_BACKOFF = Backoff(first=0.25, longest=5.0)
_FINAL = {Exit.USAGE, Exit.CONFLICT}
"""Exit codes after which a restart cannot help."""


@dataclass
class Child:
    """One child process in its own process group, so that the processes it starts are ended with it."""

    name: str
    module: str
    environment: Mapping[str, str]
    log: Path | None = None
    """The file for its output; None: the output of this process."""
    process: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    code: int | None = None
    """Its last exit code; negative for the signal that ended it."""
    _deaths: deque[float] = field(default_factory=deque)
    _due: float = 0.0

    def start(self) -> None:
        """Start the process. Its standard input stays open as long as this process lives: see `lifeline`."""
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
        """The process id; None when it does not run."""
        return self.process.pid if self.process is not None and self.process.poll() is None else None

    def tend(self) -> int | None:
        """Restart the process if it has died and its backoff is over; return the exit code of a newly noticed death."""
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
        """Whether a restart cannot help."""
        return self.code in _FINAL or len(self._deaths) > _BUDGET

    def warn(self) -> None:
        """Announce that the process will be terminated soon."""
        self._signal(signal.SIGUSR1)

    def ask_to_end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def end(self, deadline: float) -> None:
        """Wait until the process has ended; kill it at the deadline."""
        if self.process is None:
            return
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, deadline - time.monotonic()))
        self.end_group()
        self.process.wait()

    def end_group(self) -> None:
        """Kill the process and all processes that it started."""
        self._signal(signal.SIGKILL)
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()

    def _signal(self, number: signal.Signals) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)

    def to_json(self) -> dict[str, Any]:
        """Return the entry of the node's status file."""
        return {"name": self.name, "pid": self.pid, "restarts": self.restarts, "last_exit": self.code}


def describe_exit(code: int) -> str:
    """Describe an exit code, for messages."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
