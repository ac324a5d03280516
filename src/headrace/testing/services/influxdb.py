"""InfluxDB 1.x."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from headrace.testing.services.ports import HOST
from headrace.testing.services.probe import http_get
from headrace.testing.services.service import Service


@dataclass(frozen=True)
class InfluxDB(Service):
    """An InfluxDB server without authentication; databases are made with `CREATE DATABASE`."""

    kind: ClassVar[str] = "influxdb"
    packages: ClassVar[tuple[str, ...]] = ("influxdb",)
    binary: ClassVar[str] = "influxd"

    def port_names(self) -> tuple[str, ...]:
        """HTTP for clients, and its own backup service."""
        return ("client", "backup")

    def prepare(self, chosen: Mapping[str, int]) -> list[str]:
        """All options are in its configuration file."""
        config = self.home / "influxdb.conf"
        config.write_text(
            f"""reporting-disabled = true
bind-address = "{HOST}:{chosen["backup"]}"
[meta]
dir = "{self.data}/meta"
[data]
dir = "{self.data}/data"
wal-dir = "{self.data}/wal"
[http]
bind-address = "{HOST}:{chosen["client"]}"
log-enabled = false
[monitor]
store-enabled = false
"""
        )
        return [str(self.find_binary()), "run", "-config", str(config)]

    def answers(self) -> bool:
        """Its ping has no content."""
        answer = http_get(self.port, "/ping")
        return answer is not None and answer[0] == 204

    @property
    def env(self) -> dict[str, str]:
        """Where clients connect."""
        return {"INFLUXDB_URL": f"http://{self.address}"}
