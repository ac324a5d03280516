from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.core.errors import ProjectError, ProjectErrors
from headrace.plan.model import Plan
from headrace.plan.planner import make_plan
from headrace.project.loader import load

STREAMS = """\
project: rides
streams:
  orders:
    source: {type: kafka, brokers: [localhost:9092], topic: orders}
    format: {type: json, columns: 'id bigint, status string, amount double, ts timestamp, driver struct<name: string>'}
    event_time: ts
  payments:
    source: {type: kafka, brokers: [localhost:9092], topic: payments}
    format: {type: json, columns: 'id bigint, paid double, at timestamp'}
  events:
    source: {type: kafka, brokers: [localhost:9092], topic: events}
    format: json
"""


@pytest.fixture
def planned(tmp_path: Path) -> Callable[..., Plan]:
    """The plan of flows over three streams, of which `events` has columns nobody knows."""

    def make(flows: str, only: tuple[str, ...] = (), **options: Any) -> Plan:
        (tmp_path / "headrace.yaml").write_text(f"{STREAMS}flows:\n{flows}")
        return make_plan(load(tmp_path, environment={}), only, **options)

    return make


@pytest.fixture
def errors(planned: Callable[..., Plan]) -> Callable[..., list[ProjectError]]:
    """The errors of flows that cannot be planned."""

    def make(*arguments: Any, **options: Any) -> list[ProjectError]:
        with pytest.raises(ProjectError) as caught:
            planned(*arguments, **options)
        return list(caught.value.errors) if isinstance(caught.value, ProjectErrors) else [caught.value]

    return make
