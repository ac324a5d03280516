"""Prometheus, scraping engines of this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from headrace.testing.services.ports import HOST
from headrace.testing.services.probe import http_get
from headrace.testing.services.service import Service


@dataclass(frozen=True)
class Prometheus(Service):
    """A Prometheus server that reads the metrics of `targets` every second; `rules` are files with alert rules."""

    kind: ClassVar[str] = "prometheus"
    packages: ClassVar[tuple[str, ...]] = ("prometheus",)
    binary: ClassVar[str] = "prometheus"

    targets: tuple[str, ...] = (f"{HOST}:9470",)
    rules: tuple[str, ...] = ()

    def prepare(self, chosen: Mapping[str, int]) -> list[str]:
        """Its configuration is YAML, of which JSON is a part."""
        config = self.home / "prometheus.json"
        scrape = {"job_name": "headrace", "static_configs": [{"targets": list(self.targets)}]}
        settings = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "scrape_configs": [scrape],
            "rule_files": list(self.rules),
        }
        config.write_text(json.dumps(settings, indent=1))
        options = {
            "config.file": str(config),
            "storage.tsdb.path": str(self.data),
            "web.listen-address": f"{HOST}:{chosen['client']}",
        }
        return [str(self.find_binary()), *(f"--{name}={value}" for name, value in options.items())]

    def answers(self) -> bool:
        """It says when it has read its data."""
        answer = http_get(self.port, "/-/ready")
        return answer is not None and answer[0] == 200

    @property
    def env(self) -> dict[str, str]:
        """Where its own pages are."""
        return {"PROMETHEUS_URL": f"http://{self.address}"}
