"""A background process that any later command can find again through its state file."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil

# Kept so that a process which ends while its starter lives can be reaped.
_children: dict[int, subprocess.Popen[bytes]] = {}
# The start time psutil gives is computed from the boot time, which may be off by a tick.
_SAME_START_SECONDS = 2.0


@dataclass(frozen=True)
class DaemonState:
    """What is written about a process when it starts."""

    pid: int
    port: int
    ports: dict[str, int]
    started_at: str
    process_started: float

    def process(self) -> psutil.Process | None:
        """The live process, unless it ended; another one that was given the same pid since is not it."""
        child = _children.get(self.pid)
        if child is not None and child.poll() is not None:
            del _children[self.pid]
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.process_started) < _SAME_START_SECONDS
            # While a zombie still has threads, these hold its ports and files.
            ended = process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1
            return process if same and not ended else None
        except psutil.NoSuchProcess:
            return None


@dataclass(frozen=True)
class Daemon:
    """One background process: a file says which, another has what it printed over all its lives."""

    state_file: Path
    log_file: Path

    def state(self) -> DaemonState | None:
        """What was written when it last started, running or not."""
        try:
            return DaemonState(**json.loads(self.state_file.read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return None  # never started, or written by another version: nothing is known

    def process(self) -> psutil.Process | None:
        """The live process, if there is one."""
        state = self.state()
        return state.process() if state else None

    def spawn(self, command: Sequence[str], ports: Mapping[str, int], env: Mapping[str, str]) -> None:
        """Start it in a session of its own: it outlives this process and gets no Ctrl-C from its terminal."""
        with self.log_file.open("ab") as log:
            child = subprocess.Popen(
                command,
                cwd=self.state_file.parent,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        _children[child.pid] = child
        started = psutil.Process(child.pid).create_time()
        now = datetime.now(UTC).isoformat(timespec="seconds")
        state = DaemonState(child.pid, next(iter(ports.values())), dict(ports), now, started)
        written = self.state_file.with_suffix(".new")
        written.write_text(json.dumps(asdict(state), indent=2) + "\n")
        written.replace(self.state_file)

    def send(self, number: signal.Signals) -> None:
        """A signal to the process and all its children. Those that are gone are not missed."""
        process = self.process()
        if process is None:
            return
        for member in (process, *_children_of(process)):
            try:
                member.send_signal(number)
            except psutil.NoSuchProcess:
                continue

    def stop(self, number: signal.Signals = signal.SIGTERM, grace: float = 15.0) -> None:
        """Ask it to end; insist after a while. Does nothing when it does not run."""
        process = self.process()
        if process is None:
            return
        family = _children_of(process)
        process.send_signal(number)
        self.send(signal.SIGCONT)  # a paused process would never see the request
        if not await_true(lambda: self.process() is None, grace):
            self.kill()
        for orphan in family:
            if orphan.is_running():
                orphan.kill()

    def kill(self) -> None:
        """End it at once with all its children, as a crash would."""
        self.send(signal.SIGKILL)
        await_true(lambda: self.process() is None, 10.0)

    def log_tail(self, lines: int = 20) -> str:
        """The last lines it printed."""
        text = self.log_file.read_text(errors="replace") if self.log_file.exists() else ""
        return "\n".join(text.splitlines()[-lines:]) or "(nothing)"


def await_true(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether the condition came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _children_of(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []
