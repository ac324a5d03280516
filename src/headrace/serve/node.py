"""The serve node: supervises one applier, the API workers and the gRPC processes; all start and end together.

The supervisor does no other work, so no failure in serving can end it. `headrace serve` runs it; `headrace run` starts
it as a separate process: `python -m headrace.serve.node`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime

from headrace.core.errors import Exit, ProjectError
from headrace.core.files.state_files import write_atomically
from headrace.core.runtime.children import Child, describe_exit
from headrace.core.runtime.lifeline import STOP_SECONDS, run_until_stopped
from headrace.project.model import is_loopback
from headrace.serve.base import meters
from headrace.serve.base.lock import locked
from headrace.serve.base.ports import Port
from headrace.serve.base.settings import ServeProjectRef, Settings
from headrace.serve.base.status import NODE_FILE, NODE_LOCK
from headrace.serve.replica.corruption_flag import CRASHES, set_flag
from headrace.serve.replica.pointers import withdraw_stores

_TEND_SECONDS, _WRITE_SECONDS = 0.1, 1.0
_START_SECONDS = 60.0
_WARNING_SECONDS = 0.3
"""Between the warning of the end and the end: live streams close meanwhile."""


@dataclass
class Node:
    """One node of one project on this machine."""

    project: ServeProjectRef
    settings: Settings
    tell: Callable[[str], None] = lambda _text: None
    """Receives messages for the operator, for example that a process was restarted."""
    ready: Callable[[Node], None] = lambda _node: None
    """Called once, when the node answers requests."""
    http: Port | None = field(default=None, init=False)
    grpc: Port | None = field(default=None, init=False)
    children: list[Child] = field(default_factory=list, init=False)

    def run(self, stopping: threading.Event, seconds: float | None = None) -> None:
        """Serve until `stopping` is set, or for `seconds`. ProjectError when it cannot continue."""
        require_guard(self.settings)
        with ExitStack() as stack:
            stack.enter_context(locked(self.settings.store / NODE_LOCK, "node", patience=STOP_SECONDS))
            self._take_ports(stack)
            withdraw_stores(self.settings.store)  # the disk may have changed while no node ran
            meters.forget(self.settings.store)
            stack.callback(self._end)
            self._start()
            self._keep(stopping, seconds)

    @property
    def urls(self) -> dict[str, str | None]:
        http = None if self.http is None else f"http://{self.http.address}"
        return {"http": http, "grpc": None if self.grpc is None else self.grpc.address}

    def _take_ports(self, stack: ExitStack) -> None:
        spec = self.settings.spec
        self.http = Port(spec.host, spec.port, "serve.port")
        stack.callback(self.http.close)
        if spec.grpc_port is not None:
            self.grpc = Port(spec.host, spec.grpc_port, "serve.grpc_port")
            stack.callback(self.grpc.close)

    def _start(self) -> None:
        assert self.http is not None
        numbers: dict[str, object] = {"port": self.http.number, "grpc_port": self.grpc and self.grpc.number}
        environment = self.project.over(**numbers).environment()
        workers = range(1, self.settings.spec.workers + 1)
        self.children = [Child("applier", "headrace.serve.replica.applier", environment)]
        self.children += [Child(f"api-{number}", "headrace.serve.rest.api", environment) for number in workers]
        if self.grpc is not None:
            self.children += [Child(f"grpc-{number}", "headrace.serve.grpc", environment) for number in workers]
        for child in self.children:
            child.start()

    def _keep(self, stopping: threading.Event, seconds: float | None) -> None:
        began = time.monotonic()
        answering = threading.Thread(target=self._await_answer, name="first answer", daemon=True)
        answering.start()
        written = 0.0
        while not stopping.wait(_TEND_SECONDS):
            died = [code for child in self.children if (code := self._tend(child)) is not None]
            if died or time.monotonic() - written > _WRITE_SECONDS:
                written = time.monotonic()
                self._write()
            if seconds is not None and time.monotonic() - began > seconds:
                break

    def _await_answer(self) -> None:
        assert self.http is not None
        if self.http.wait(_START_SECONDS):
            self._write()
            self.ready(self)
        else:
            self.tell(f"the API does not answer after {_START_SECONDS:.0f} s")

    def _tend(self, child: Child) -> int | None:
        code = child.tend()
        if code is None:
            return None
        if -code in CRASHES:
            set_flag(self.settings.store, f"the {child.name} {describe_exit(code)}")
        if child.hopeless:
            raise ProjectError(
                "serve-failed",
                f"the {child.name} of the serve node {describe_exit(code)}, and would fail again",
                hint="fix the problem that it reported above and restart the node",
                exit_code=Exit.CONFLICT if code == Exit.CONFLICT else Exit.FAILED,
            )
        self.tell(f"the {child.name} {describe_exit(code)}; it is restarted")
        return code

    def _end(self) -> None:
        for child in self.children:
            child.warn()
        threading.Event().wait(_WARNING_SECONDS)
        for child in self.children:
            child.ask_to_end()
        deadline = time.monotonic() + STOP_SECONDS
        for child in self.children:
            child.end(deadline)
        (self.settings.store / NODE_FILE).unlink(missing_ok=True)

    def _write(self) -> None:
        document = {
            "pid": os.getpid(),
            "as_of": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            **self.urls,
            "processes": [child.to_json() for child in self.children],
        }
        write_atomically(self.settings.store / NODE_FILE, json.dumps(document).encode(), durable=False)


def require_guard(settings: Settings) -> None:
    """Refuse to serve other machines without authentication."""
    spec = settings.spec
    if spec.auth.wanted or is_loopback(spec.host):
        return
    raise ProjectError(
        "serve-unguarded",
        f"'serve.host: {spec.host}' is reachable from other machines, and no token is required",
        hint="add 'serve.auth' (headrace token create --api-key creates a key), or listen on 127.0.0.1",
    )


def welcome(settings: Settings, http: str | None, grpc: str | None) -> list[str]:
    """The addresses and a first request, for the terminal."""
    lines = [f"serving {http} (docs: {http}/docs)" + (f", gRPC {grpc}" if grpc else "")]
    if not settings.spec.auth.wanted:
        lines.append("no token is required, so only this machine is answered: see serve.auth")
    return [*lines, *(f"  curl {http}/{name}" for name in settings.endpoints[:3])]


def main() -> int:
    return run_until_stopped(_serve)


def _serve(stopping: threading.Event) -> None:
    project = ServeProjectRef.here()
    settings = project.settings()
    Node(project, settings, lambda text: print(settings.redact(text), file=sys.stderr, flush=True)).run(stopping)


if __name__ == "__main__":
    sys.exit(main())
