"""What every local service can do."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from headrace.core.errors import Exit, ProjectError
from headrace.engine.spark.jars import SetName, jar_dir
from headrace.testing.services import ports
from headrace.testing.services.daemon import Daemon

_START_ATTEMPTS = 3
_PAUSE_BETWEEN_QUESTIONS = 0.05


def program_dir() -> Path:
    """Where programs are that were built here."""
    return jar_dir().parent / "bin"


@dataclass(frozen=True)
class Service(ABC):
    """A real server on free loopback ports. Its options are its fields; what runs is known by the files in `home`.

    Hence an equal object, made by another command, sees and stops the same server. Data outlives `stop`, so that
    `start` continues with it, on the same ports if they are free. `with` also stops the server, and removes a home that
    was not chosen.
    """

    kind: ClassVar[str]
    packages: ClassVar[tuple[str, ...]] = ()
    jar_set: ClassVar[SetName | None] = None
    binary: ClassVar[str] = ""
    go_module: ClassVar[str] = ""
    """What Go builds the program from, where no package has it."""
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    start_seconds: ClassVar[float] = 60.0

    folder: Path | None = None

    @abstractmethod
    def prepare(self, chosen: Mapping[str, int]) -> list[str]:
        """Configure it for these ports, the first time also initialise its data; gives its command line.

        The command must stay in the foreground.
        """

    @abstractmethod
    def answers(self) -> bool:
        """Whether the server itself says that it is ready."""

    @property
    @abstractmethod
    def env(self) -> dict[str, str]:
        """Environment variables from which a client learns where the server is."""

    def port_names(self) -> tuple[str, ...]:
        """The ports it listens on; the first is for clients."""
        return ("client",)

    def process_env(self) -> dict[str, str]:
        """The environment the server runs in."""
        return dict(os.environ)

    @classmethod
    def find_binary(cls) -> str | None:
        """The server program, also where Debian puts what is not on the PATH, or built here."""
        places = ("/usr/sbin", "/usr/local/sbin", str(program_dir()))
        return shutil.which(cls.binary) or shutil.which(cls.binary, path=os.pathsep.join(places))

    @classmethod
    def problem(cls) -> ProjectError | None:
        """Why it cannot start here, with the command that fixes it."""
        if cls.find_binary() is not None:
            return None
        return ProjectError(
            "service-unavailable",
            f"{cls.kind}: no '{cls.binary}' on the PATH",
            hint=cls.install_hint(),
            exit_code=Exit.CONFLICT,
        )

    @classmethod
    def install_hint(cls) -> str:
        """What to type to get the server program."""
        packages = " ".join(cls.packages)
        by_hand = f"sudo apt-get install --no-install-recommends {packages}"
        return f"run: headrace services install {cls.kind} (as root), or {by_hand}"

    @cached_property
    def home(self) -> Path:
        """Data, log and state."""
        if self.folder is not None:
            return self.folder.absolute()
        return Path(tempfile.mkdtemp(prefix=f"headrace-{self.kind}-"))

    @property
    def data(self) -> Path:
        """Where the server keeps what must survive a restart."""
        return self.home / "data"

    @property
    def server(self) -> Daemon:
        """The process clients talk to."""
        return Daemon(self.home / "state.json", self.home / "server.log")

    def daemons(self) -> tuple[Daemon, ...]:
        """All its processes, in the order in which they are stopped."""
        return (self.server,)

    @property
    def log_file(self) -> Path:
        """What the server printed."""
        return self.server.log_file

    @property
    def ports(self) -> dict[str, int]:
        """Port numbers by name, since the first start."""
        state = self.server.state()
        if state is None:
            raise ProjectError("service-not-started", f"{self.kind} was never started in {self.home}", hint="start it")
        return state.ports

    @property
    def port(self) -> int:
        return self.ports[self.port_names()[0]]

    @property
    def address(self) -> str:
        """host:port for clients."""
        return f"{ports.HOST}:{self.port}"

    def is_running(self) -> bool:
        """Whether the process this was started as still lives (paused counts)."""
        return self.server.process() is not None

    def start(self) -> Self:
        """Start it and wait until it answers; does nothing when it runs."""
        problem = self.problem()
        if problem is not None:
            raise problem
        self.home.mkdir(parents=True, exist_ok=True)
        if self.folder is None:
            atexit.register(self.remove)
        for attempts_left in reversed(range(_START_ATTEMPTS)):
            if self.is_running() or self._launch(may_clash=attempts_left > 0):
                break
        return self

    def stop(self) -> None:
        """End it gracefully, or by force when it does not heed. Stopping twice is fine."""
        for daemon in self.daemons():
            daemon.stop(self.stop_signal)

    def kill(self) -> None:
        """End it at once, as a crash would."""
        for daemon in self.daemons():
            daemon.kill()

    def pause(self) -> None:
        """Freeze it: connections stay open, nothing is answered."""
        for daemon in self.daemons():
            daemon.send(signal.SIGSTOP)

    def resume(self) -> None:
        """Undo `pause`."""
        for daemon in self.daemons():
            daemon.send(signal.SIGCONT)

    def remove(self) -> None:
        """Stop it and delete its data."""
        self.stop()
        shutil.rmtree(self.home, ignore_errors=True)
        atexit.unregister(self.remove)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop() if self.folder is not None else self.remove()

    def _launch(self, *, may_clash: bool) -> bool:
        """Start the process; False when another process has taken one of its ports."""
        state = self.server.state()
        chosen = ports.choose(self.port_names(), state.ports if state else {})
        self.server.spawn(self.prepare(chosen), chosen, self.process_env())
        complaint = self._await_answer()
        if complaint is None:
            return True
        clashed = not self.is_running() and not all(ports.is_free(port) for port in chosen.values())
        self.stop()
        if clashed and may_clash:
            return False
        raise self.failure(complaint)

    def _await_answer(self) -> str | None:
        """None as soon as it answers, else what went wrong."""
        deadline = time.monotonic() + self.start_seconds
        while self.is_running():
            if self.answers():
                return None
            if time.monotonic() > deadline:
                return f"no answer within {self.start_seconds:.0f} s"
            time.sleep(_PAUSE_BETWEEN_QUESTIONS)
        return "the process ended"

    def failure(self, reason: str) -> ProjectError:
        """An error that shows what the server said last."""
        return ProjectError(
            "service-failed",
            f"{self.kind} did not start: {reason}. Last lines of {self.log_file}:\n{self.server.log_tail()}",
            hint=f"fix the problem in the log; a fresh start needs {self.home} removed",
        )
