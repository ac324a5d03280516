"""ClickHouse with its HTTP interface."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar
from xml.sax.saxutils import escape

from headrace.testing.services.ports import HOST
from headrace.testing.services.probe import http_get
from headrace.testing.services.service import Service

_USERS = """<yandex>
<profiles><default><max_memory_usage>1000000000</max_memory_usage></default></profiles>
<users><default>
<password>{password}</password>
<networks><ip>127.0.0.1</ip></networks>
<profile>default</profile>
<quota>default</quota>
</default></users>
<quotas><default><interval><duration>3600</duration></interval></default></quotas>
</yandex>
"""


@dataclass(frozen=True)
class ClickHouse(Service):
    """A single ClickHouse server without replication; its user is `default`."""

    kind: ClassVar[str] = "clickhouse"
    packages: ClassVar[tuple[str, ...]] = ("clickhouse-server",)
    binary: ClassVar[str] = "clickhouse-server"

    password: str = ""

    def port_names(self) -> tuple[str, ...]:
        """HTTP for clients, and the native protocol, without which the server does not start."""
        return ("client", "native")

    def prepare(self, chosen: Mapping[str, int]) -> list[str]:
        """All options are in its configuration files."""
        (self.home / "users.xml").write_text(_USERS.format(password=escape(self.password)))
        config = self.home / "config.xml"
        config.write_text(
            f"""<yandex>
<logger><level>warning</level><console>1</console></logger>
<listen_host>{HOST}</listen_host>
<http_port>{chosen["client"]}</http_port>
<tcp_port>{chosen["native"]}</tcp_port>
<path>{self.data}/</path>
<tmp_path>{self.data / "tmp"}/</tmp_path>
<users_config>{self.home}/users.xml</users_config>
<default_profile>default</default_profile>
<default_database>default</default_database>
<timezone>UTC</timezone>
<mark_cache_size>67108864</mark_cache_size>
</yandex>
"""
        )
        self.data.mkdir(exist_ok=True)
        return [str(self.find_binary()), f"--config-file={config}"]

    def answers(self) -> bool:
        """`Ok.` to a ping."""
        answer = http_get(self.port, "/ping")
        return answer is not None and answer[0] == 200

    @property
    def env(self) -> dict[str, str]:
        """Where clients connect."""
        return {"CLICKHOUSE_URL": f"http://{self.address}"}
