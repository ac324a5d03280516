"""etcd, one node."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from headrace.testing.services.ports import HOST
from headrace.testing.services.probe import http_get
from headrace.testing.services.service import Service


@dataclass(frozen=True)
class Etcd(Service):
    """An etcd node that is its own cluster; gRPC and the JSON gateway on one port."""

    kind: ClassVar[str] = "etcd"
    packages: ClassVar[tuple[str, ...]] = ("etcd-server",)
    binary: ClassVar[str] = "etcd"

    def port_names(self) -> tuple[str, ...]:
        """For clients, and for the other nodes there are not."""
        return ("client", "peer")

    def prepare(self, chosen: Mapping[str, int]) -> list[str]:
        """Its name is fixed, so that a restart on other ports is the same member."""
        self.data.mkdir(mode=0o700, exist_ok=True)
        client, peer = (f"http://{HOST}:{chosen[name]}" for name in ("client", "peer"))
        options = {
            "name": "local",
            "data-dir": str(self.data),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"local={peer}",
        }
        return [str(self.find_binary()), *(f"--{name}={value}" for name, value in options.items())]

    def process_env(self) -> dict[str, str]:
        """Without settings meant for another etcd: it reads every option from the environment too."""
        return {name: value for name, value in super().process_env().items() if not name.startswith("ETCD_")}

    def answers(self) -> bool:
        """Healthy means that it has a leader and can commit."""
        answer = http_get(self.port, "/health")
        return answer is not None and answer[0] == 200 and json.loads(answer[1]).get("health") == "true"

    @property
    def env(self) -> dict[str, str]:
        """Where clients connect."""
        return {"ETCD_URL": f"http://{self.address}"}
