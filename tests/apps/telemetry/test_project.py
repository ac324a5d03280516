"""The application as a project: its profiles can be planned, and its flows stand in a row."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from apps.telemetry.generator import Generator, fate_of
from tests.apps.telemetry.application import APP

from headrace.core.capabilities import endpoint_of, sink_of_flow
from headrace.core.errors import ProjectErrors
from headrace.plan.feeds import flow_feeds, flow_waits
from headrace.plan.planner import make_plan
from headrace.project.loader import load


@pytest.mark.parametrize("profile", ["local", "kafka"])
def test_each_stage_waits_for_those_before_it(profile: str) -> None:
    project = load(APP, profile=profile, environment={})
    links = flow_feeds(make_plan(project), project.context)
    order = flow_waits(links)
    assert order["extract"] == {"ingest", "ingest_http"}
    assert order["redact"] == {"ingest", "ingest_http", "extract"}
    assert order["preprocess"] == {"ingest", "ingest_http", "ingest_server_events", "extract", "redact"}
    assert order["denormalise"] >= {"preprocess"}
    assert order["olap"] >= {"preprocess", "denormalise"}
    assert all(writers <= order[flow] for flow, writers in links.items()), "no flow is in a circle"


@pytest.mark.parametrize("wrong", ["compat=Sunbird", "igot=maybe", "olap_dedup=maybe", "numbers=doubles"])
def test_a_setting_that_means_nothing_is_refused(wrong: str) -> None:
    with pytest.raises(ProjectErrors) as refused:
        load(APP, overrides=[f"variables.{wrong}"], environment={})
    assert {one.code for one in refused.value.errors} == {"bad-value"}


def test_producers_that_send_twice_are_those_of_the_env() -> None:
    project = load(APP, overrides=["variables.env=prod"], environment={})
    (step,) = [one for one in project.spec.flows["preprocess"].before["telemetry_raw"] if one.type == "sql"]
    assert "concat('prod.', id)" in step.sql


def test_every_report_with_an_endpoint_is_on_a_dashboard() -> None:
    project = load(APP, environment={})
    make_plan(project)
    reports = {
        endpoint_of(sink)
        for name, flow in project.spec.flows.items()
        if flow.over == "all"
        for sink in (sink_of_flow(sink, name) for sink in flow.sinks)
        if endpoint_of(sink) is not None
    }
    assert reports == {chart.endpoint for one in project.spec.dashboards.values() for chart in one.charts}


def test_the_generator_makes_the_same_events_of_all_kinds_for_the_same_seed() -> None:
    batches = list(Generator(seed=5).batches(300))
    assert batches == list(Generator(seed=5).batches(300))
    assert batches != list(Generator(seed=6).batches(300))
    events = [event for batch in batches for event in json.loads(batch.text)["events"]]
    assert [(one["mid"], fate_of(one)) for one in events] == [sent for batch in batches for sent in batch.sent]
    assert len({one["eid"] for one in events}) == 19
    mids = Counter(one["mid"] for one in events)
    assert 0.01 < sum(times - 1 for times in mids.values()) / len(events) < 0.03
    assert 800 < sum(len(json.dumps(one, separators=(",", ":"))) for one in events) / len(events) < 1100
