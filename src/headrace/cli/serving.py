"""The serve node that `headrace run` starts beside its engine, as a process of its own.

Neither fails with the other: a node that dies is started again, and one that cannot run is told about and tried again
from time to time. What it prints is in `logs/serve.log` of the state folder.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from headrace.cli.output import printer

if TYPE_CHECKING:
    from headrace.plan.model import Plan
    from headrace.project.loader import Project
    from headrace.serve.settings import Given

_END_SECONDS = 15.0
_SAID_BYTES = 2000


def wants_serving(project: Project, plan: Plan) -> bool:
    """Whether a flow that runs writes an endpoint, and the project wants it served."""
    sinks = (step.sink for flow in plan.flows for step in flow.sinks)
    return project.spec.serve.enabled and any(sink.endpoint is not None for sink in sinks)


class Serving:
    """Keeps a node alive from `with` until its end."""

    def __init__(self, given: Given, project: Project, logs: Path) -> None:
        from headrace.core.children import Child
        from headrace.serve.settings import Settings

        self._settings = Settings.of(project)
        self.note: Callable[[str, str], None] = lambda _about, _text: None
        """Takes what the engine's status should say of it."""
        self._log = logs / "serve.log"
        self._child = Child("serve node", "headrace.serve.node", given.environment(), self._log)
        self._told: object = None
        self._failing = False
        self._read = 0

    def __enter__(self) -> Serving:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._read = self._log.stat().st_size if self._log.exists() else 0
        self._child.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.ask_to_end()
        # who presses Ctrl-C twice does not want to wait: what the node has started notices its end
        self._child.end(time.monotonic() + (0.0 if kind is KeyboardInterrupt else _END_SECONDS))

    def tend(self) -> None:
        """Start the node again if it has died; say where it answers, and what is wrong with it."""
        code = self._child.tend()
        if code is not None:
            self._fails(self._reason(code))
        elif self._child.pid is not None:
            self._look()

    def _fails(self, reason: str) -> None:
        self._failing = True
        self.note("serve", f"endpoints are not served: {reason}")
        self._tell(reason, f"endpoints are not served, the flows go on: {reason}")

    def _look(self) -> None:
        from headrace.serve.node import welcome
        from headrace.serve.status import read_node

        node = read_node(self._settings.store)
        if node is None or node["pid"] != self._child.pid or node["http"] is None:
            return
        if self._failing:
            self._failing = False
            self.note("serve", "endpoints are served again")
        self._tell(node["pid"], "\n".join(welcome(self._settings, node["http"], node["grpc"])))

    def _tell(self, what: object, text: str) -> None:
        if what != self._told:
            self._told = what
            printer.note(text)

    def _reason(self, code: int) -> str:
        """What it said last, else how it ended."""
        from headrace.core.children import how

        with self._log.open("rb") as log:
            size = self._log.stat().st_size
            log.seek(max(self._read, size - _SAID_BYTES))
            said = log.read().decode(errors="replace").splitlines()
        self._read = size
        error = next((line for line in reversed(said) if line.startswith("error[")), None)
        return error or f"the serve node {how(code)}, see {self._log}"
