"""Workflow summaries of upstream's fixtures through the real flow: all in one run, and as a stream."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headrace.project.loader import load
from headrace.testing.harness import ProjectHarness

pytestmark = pytest.mark.spark

APP = Path(__file__).parents[3] / "apps/telemetry"
FIXTURES = Path(__file__).parent / "fixtures/workflow-summary"
UPSTREAM = ("variables.compat=sunbird", "variables.summary_gap=24h")

Event = dict[str, Any]


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The application with this stage alone."""
    folder = tmp_path_factory.mktemp("telemetry")
    shutil.copy(APP / "headrace.yaml", folder)
    shutil.copytree(APP / "processors", folder / "processors", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "flows").mkdir()
    shutil.copy(APP / "flows/summaries.yaml", folder / "flows")
    return folder


def odd(second: int, eid: str, more: str) -> str:
    """An event of a channel of its own, in which something is not as it should be."""
    ets = 1_515_402_354_310 + second * 1000
    return f'{{"eid": "{eid}", "mid": "{second}", "ets": {ets}, "actor": {{"id": "u"}}, {more}}}'


ODD = [
    odd(0, "START", '"context": {"channel": "odd"}, "@timestamp": "never", "edata": {"type": 5, "mode": [1]}'),
    odd(1, "IMPRESSION", '"context": {"channel": "odd", "env": {}}, "syncts": "x", "edata": {"pageid": [1]}'),
    odd(2, "ASSESS", '"context": {"channel": "odd"}, "edata": {"resvalues": 5, "item": "x", "score": 1e400}'),
    odd(3, "INTERACT", '"context": {"channel": "odd"}, "edata": [1], "object": ' + "[" * 400 + "]" * 400),
    "\t" + odd(4, "END", '"context": {"channel": "odd"}, "edata": {"type": 5.0, "type": 5, "mode": [1]}'),
]
TIMELESS = [
    "no JSON", "[]", '{"eid": "END"} {}', "{'ets': 1515402354310}", '{"ets": -1}', '{"ets": 1e300}', '{"ets": "NaN"}',
    '{"ets": 1515402354310, "ets": {}}', '{"ets": null, "context": 5}',
]  # fmt: skip


def lines() -> list[str]:
    found = [line for number in (1, 2, 3) for line in (FIXTURES / f"test-data{number}.log").read_text().splitlines()]
    return [*found, *ODD, *TIMELESS]


def ets(line: str) -> float:
    return 0.0 if line in TIMELESS else float(json.loads(line).get("ets", 0))


def documents(harness: ProjectHarness) -> list[Event]:
    rows = harness.rows("summaries")
    assert {row["topic"] for row in rows} == {"dev.telemetry.derived"}
    made = [json.loads(row["value"]) for row in rows]
    assert [one["mid"] for one in made] == [row["key"] for row in rows]
    # the time of the batch
    assert all(one.pop("ets") > 1_700_000_000_000 for one in made)
    return made


@pytest.fixture(scope="module", params=["sunbird", "none"])
def compat(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def in_one_run(app: Path, compat: str, spark: Any) -> Iterator[tuple[list[Event], list[Event]]]:
    """What comes out of a run over all files, and its dead letters."""
    overrides = UPSTREAM if compat == "sunbird" else ()
    with ProjectHarness(load(app, overrides=overrides), spark) as harness:
        harness.feed("telemetry_unique", [{"value": line} for line in lines()])
        harness.run("summaries")
        yield documents(harness), harness.dead_letters("summaries")


def test_a_run_gives_what_upstream_asserts(in_one_run: tuple[list[Event], list[Event]], compat: str) -> None:
    made, letters = [one for one in in_one_run[0] if one["dimensions"]["channel"] != "odd"], in_one_run[1]
    assert Counter(one["dimensions"]["type"] for one in made) == {
        "app": 8, "session": 2, "player": 1, "editor": 3, "textbookunit": 2, "resource": 2, "content": 1, "qr": 1,
    }  # fmt: skip
    mids = {one["mid"] for one in made}
    assert len(mids) == 20
    assert {"B151E935C1F3E9D7D30A4A6EB96E2AE2", "47377F637676DDE217BAFA1DF95E6FF1"} <= mids
    # with the one record of upstream's that is no event
    assert [one["reason"] for one in letters] == ["no-event-time"] * (len(TIMELESS) + 1)


def test_an_odd_event_counts_like_others(in_one_run: tuple[list[Event], list[Event]], compat: str) -> None:
    made = [one for one in in_one_run[0] if one["dimensions"]["channel"] == "odd"]
    told = {one["dimensions"]["type"]: one["edata"]["eks"] for one in made}
    assert set(told) == {"app", "5"}
    assert all(eks["time_spent"] == 4.0 for eks in told.values())
    assert {one["id"]: one["count"] for one in told["5"]["events_summary"]} == {
        "START": 1, "IMPRESSION": 1, "ASSESS": 1, "INTERACT": 1, "END": 1,
    }  # fmt: skip


def test_a_stream_gives_the_same(
    app: Path, compat: str, in_one_run: tuple[list[Event], list[Event]], spark: Any
) -> None:
    made, letters = in_one_run
    overrides = UPSTREAM if compat == "sunbird" else ()
    events = sorted(lines(), key=ets)
    cuts = [0, len(events) // 3, 2 * len(events) // 3, len(events)]
    with ProjectHarness(load(app, profile="kafka", overrides=overrides), spark) as harness:
        for start, end in pairwise(cuts):
            part = events[start:end]
            random.Random(start).shuffle(part)
            harness.feed("telemetry_unique", [{"value": line} for line in part])
            harness.run("summaries")
            if start == 0:
                harness.restart()
        assert [one["reason"] for one in harness.dead_letters("summaries")] == [one["reason"] for one in letters]
        found = documents(harness)
    assert sorted(found, key=lambda one: one["mid"]) == sorted(made, key=lambda one: one["mid"])
