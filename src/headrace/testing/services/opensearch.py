"""OpenSearch: one node without the security plugin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from headrace.core.errors import ProjectError
from headrace.engine.spark.jars import SetName, java_command, pyspark_home, require_jars, require_java
from headrace.testing.services.ports import HOST
from headrace.testing.services.probe import http_get
from headrace.testing.services.service import Service

_SETTINGS = """network.host: {host}
transport.port: {transport}
discovery.type: single-node
cluster.routing.allocation.disk.threshold_enabled: false
"""
_LOGGING = """appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %-5p %c{1.} %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""


@dataclass(frozen=True)
class OpenSearch(Service):
    """An OpenSearch node that trusts everyone on loopback; indices are made when they are first written."""

    kind: ClassVar[str] = "opensearch"
    jar_set: ClassVar[SetName | None] = "search"
    start_seconds: ClassVar[float] = 120.0

    heap: str = "512m"

    @classmethod
    def problem(cls) -> ProjectError | None:
        """Java or the jars may be missing."""
        try:
            require_java()
            require_jars("search")
        except ProjectError as error:
            return ProjectError(
                "service-unavailable", f"opensearch: {error.message}", hint=error.hint, exit_code=error.exit_code
            )
        return None

    def port_names(self) -> tuple[str, ...]:
        """HTTP for clients, and the port that nodes would use among themselves."""
        return ("client", "transport")

    def prepare(self, chosen: Mapping[str, int]) -> list[str]:
        """Settings are in its configuration folder; a small class of ours starts it, compiled on the way by Janino."""
        config = self.home / "config"
        config.mkdir(exist_ok=True)
        (config / "opensearch.yml").write_text(_SETTINGS.format(host=HOST, transport=chosen["transport"]))
        (config / "log4j2.properties").write_text(_LOGGING)
        spark = pyspark_home() / "jars"
        compiler = [str(next(spark.glob(f"{name}-*.jar"))) for name in ("janino", "commons-compiler")]
        classes = ":".join([f"{require_jars('search')[0].parent}/*", *compiler])
        java = [java_command(), "-Xms256m", f"-Xmx{self.heap}", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true"]
        launch = ["org.codehaus.janino.JavaSourceClassLoader", "-sourcepath", str(Path(__file__).parent)]
        return [*java, "-cp", classes, *launch, "OpenSearchNode", *self._options(config, chosen["client"])]

    def _options(self, config: Path, port: int) -> list[str]:
        modules = (
            "org.opensearch.transport.Netty4Plugin",
            "org.opensearch.analysis.common.CommonAnalysisPlugin",
            "org.opensearch.index.mapper.MapperExtrasPlugin",
            "org.opensearch.index.reindex.ReindexPlugin",
        )
        # the first node gets the port after the base
        return [
            *("-basePath", str(self.home / "node"), "-confPath", str(config), "-dataPath", str(self.data)),
            *("-numOfNode", "1", "-baseHttpPort", str(port - 1), "-moduleTypes", ",".join(modules)),
        ]

    def answers(self) -> bool:
        """What it says about its own health."""
        answer = http_get(self.port, "/_cluster/health")
        return answer is not None and answer[0] == 200 and b'"status":"red"' not in answer[1]

    @property
    def env(self) -> dict[str, str]:
        """Where clients connect."""
        return {"OPENSEARCH_URL": f"http://{self.address}"}
