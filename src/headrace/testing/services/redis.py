"""Redis with an append-only file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from headrace.testing.services.ports import HOST
from headrace.testing.services.probe import ask
from headrace.testing.services.service import Service


@dataclass(frozen=True)
class Redis(Service):
    """A Redis server; what was written survives a restart."""

    kind: ClassVar[str] = "redis"
    packages: ClassVar[tuple[str, ...]] = ("redis-server",)
    binary: ClassVar[str] = "redis-server"

    def prepare(self, chosen: Mapping[str, int]) -> list[str]:
        """Options are given on the command line: no configuration file is read."""
        self.data.mkdir(exist_ok=True)
        options = {
            "bind": HOST,
            "port": str(chosen["client"]),
            "dir": str(self.data),
            "appendonly": "yes",
            "save": "",
            "daemonize": "no",
        }
        return [str(self.find_binary()), *(word for name, value in options.items() for word in (f"--{name}", value))]

    def answers(self) -> bool:
        """PONG; while it still loads its data, it answers an error."""
        return ask(self.port, b"PING\r\n") == b"+PONG\r\n"

    @property
    def env(self) -> dict[str, str]:
        """Where clients connect."""
        return {"REDIS_URL": f"redis://{self.address}/0"}
