"""`headrace plan`: the same plan as text, JSON and graph; secrets in none of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

SECOND_FLOW = """\
  counts:
    description: How many per second.
    sql: SELECT window.start AS at, count(*) AS n FROM orders GROUP BY window(at, '1 second')
    sinks:
      - {type: kafka, brokers: ["127.0.0.1:9"], topic: "${secret:TOPIC:-counts}", format: json}
"""


@pytest.fixture
def two_flows(project: Path) -> Path:
    with (project / "headrace.yaml").open("a") as file:
        file.write(SECOND_FLOW)
    return project


def test_as_text(two_flows: Path, headrace: Run) -> None:
    ran = headrace("plan", two_flows)
    assert (ran.code, ran.err) == (0, "")
    assert "flow big" in ran.out
    assert "flow counts" in ran.out


def test_as_json(two_flows: Path, headrace: Run) -> None:
    plan = headrace("plan", two_flows, "--json").data
    assert plan["project"] == "shop"
    assert [flow["name"] for flow in plan["flows"]] == ["big", "counts"]
    big = plan["flows"][0]
    assert big["inputs"][0]["columns"] == ["id", "amount"]
    assert big["guarantee"] == big["sinks"][0]["guarantee"]


def test_as_a_graph(two_flows: Path, headrace: Run) -> None:
    out = headrace("plan", two_flows, "--dot").out
    assert out.startswith("digraph")
    assert out.rstrip().endswith("}")
    assert '"stream orders" -> "flow big"' in out


def test_of_some_flows(two_flows: Path, headrace: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def flows(*arguments: object) -> list[str]:
        return [flow["name"] for flow in headrace("plan", *arguments, "--json").data["flows"]]

    assert flows(two_flows, "counts") == ["counts"]
    assert flows("counts", "-p", two_flows) == ["counts"]
    monkeypatch.chdir(two_flows)
    assert flows("big") == ["big"]
    Path("big").mkdir()  # a table's folder may have the flow's name
    assert flows("big") == ["big"]


def test_of_an_unknown_flow(two_flows: Path, headrace: Run) -> None:
    ran = headrace("plan", two_flows, "count", "--json")
    assert (ran.code, ran.error["error"]["code"]) == (4, "unknown-flow")
    assert "did you mean 'counts'?" in ran.error["error"]["hint"]


@pytest.mark.parametrize("form", [[], ["--json"], ["--dot"]])
def test_secrets_are_hidden(two_flows: Path, headrace: Run, monkeypatch: pytest.MonkeyPatch, form: list[str]) -> None:
    monkeypatch.setenv("TOPIC", "hush-hush")
    ran = headrace("plan", two_flows, *form)
    assert ran.code == 0
    assert "hush-hush" not in ran.out
    assert "****" in ran.out
