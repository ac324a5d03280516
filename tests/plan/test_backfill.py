"""A stream that begins with history, as far as the plan goes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.core.context import Context, ReadContext
from headrace.core.errors import ProjectErrors
from headrace.core.positions import AtOffset, Earliest, Positions, SplitScope
from headrace.engine.inputs.backfill import BackfilledPositions
from headrace.plan.checkpoint_shape import shape_of
from headrace.plan.compare import compare
from headrace.plan.explain import to_json, to_text
from headrace.plan.model import Plan
from headrace.plan.planner import make_plan
from headrace.project.loader import load
from headrace.sources.kafka import KafkaSource

STREAM = """
project: shop
streams:
  orders:
    source: {type: kafka, brokers: "127.0.0.1:1", topic: orders START}
    format: {type: json, columns: 'id bigint, at timestamp'}
    EVENT_TIME
    BACKFILL
flows:
  ids: {sql: SELECT id FROM orders, sinks: [MODE]}
"""
UNTIL = "backfill: {files: history, until: 2026-02-01}"


def plan_of(
    folder: Path, backfill: str, event_time: str = "event_time: at", start: str = "", sink: str = "noop"
) -> Plan:
    text = STREAM.replace("BACKFILL", backfill).replace("EVENT_TIME", event_time).replace("START", start)
    (folder / "headrace.yaml").write_text(text.replace("[MODE]", sink if "mode" in sink else f"[{sink}]"))
    return make_plan(load(folder))


def test_the_plan_says_what_comes_first(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, UNTIL)
    said = "first the history in files history, up to event time 2026-02-01T00:00:00+00:00"
    assert f"    {said}" in list(to_text(plan))
    (one,) = to_json(plan)["flows"][0]["inputs"]
    assert one["backfill"] == {"label": "files history", "seam": "event time 2026-02-01T00:00:00+00:00"}
    (stream,) = plan.flow("ids").streams()
    assert stream.wanted.names == ["id", "at"], "the seam needs the event time, whether the SQL does or not"
    (other,) = plan_of(tmp_path, "backfill: {lake: old}").flow("ids").streams()
    assert other.wanted.names == ["id"]


@pytest.mark.parametrize(
    ("backfill", "event_time", "start", "said"),
    [
        ("backfill: {files: a, lake: b}", "event_time: at", "", "exactly one of"),
        ("backfill: {}", "event_time: at", "", "exactly one of"),
        ("backfill: {lake: a, dates: '2026-01-01,2026-01-02'}", "event_time: at", "", "folders of 'files'"),
        ("backfill: {files: a, dates: yesterday}", "event_time: at", "", "start,end"),
        (UNTIL, "", "", "needs an 'event_time'"),
        (UNTIL, "event_time: at", ", start: latest", "`start` must not be set"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, backfill: str, event_time: str, start: str, said: str) -> None:
    with pytest.raises(ProjectErrors, match=said):
        plan_of(tmp_path, backfill, event_time, start)


def test_only_kafka_can_wait(tmp_path: Path) -> None:
    text = STREAM.replace("BACKFILL", UNTIL).replace("EVENT_TIME", "event_time: at").replace("[MODE]", "[noop]")
    text = text.replace('{type: kafka, brokers: "127.0.0.1:1", topic: orders START}', "{type: files, path: new}")
    (tmp_path / "headrace.yaml").write_text(text)
    with pytest.raises(ProjectErrors, match="such as kafka, not files"):
        load(tmp_path)


def test_real_time_flows_cannot_begin_with_history(tmp_path: Path) -> None:
    kafka = "{type: kafka, brokers: '127.0.0.1:1', topic: out}"
    with pytest.raises(ProjectErrors) as caught:
        plan_of(tmp_path, "backfill: {lake: old}", sink=f"[{kafka}], mode: realtime")
    assert any("begins with history from lake old" in error.message for error in caught.value.errors)


@pytest.mark.parametrize(
    "changed", ["", "backfill: {files: other, until: 2026-02-01}", UNTIL.replace("02-01", "03-01")]
)
def test_another_history_needs_a_new_generation(tmp_path: Path, changed: str) -> None:
    old = shape_of(plan_of(tmp_path, UNTIL).flow("ids"))
    new = shape_of(plan_of(tmp_path, changed).flow("ids"))
    assert compare(old, old, {}, {}).kind == "safe"
    assert compare(old, new, {}, {}).kind == "new_generation"


def test_kafka_waits_while_there_is_history() -> None:
    source = KafkaSource(brokers=["127.0.0.1:1"], topic="t")
    context = ReadContext(Context(Path(), ""), "s", max_records=10, start={"t": {"0": 5}})
    assert source.reader_options(context)["maxOffsetsPerTrigger"] == "10"
    held = source.reader_options(replace(context, held=True))
    assert held["minOffsetsPerTrigger"] == str(2**62)
    assert "maxOffsetsPerTrigger" not in held
    assert held["startingOffsets"] == '{"t": {"0": 5}}'


def test_the_earliest_position_is_the_beginning_of_the_history() -> None:
    class Inner(Positions):
        def resolve(self, target: object, current: object, scope: SplitScope) -> dict[str, int]:
            return {"at": 7}

    positions = BackfilledPositions(Inner("kafka"))
    assert positions.resolve(Earliest(), None, SplitScope()) is None
    assert positions.resolve(AtOffset(7), None, SplitScope()) == {"at": 7}
    assert positions.resolve(Earliest(), None, SplitScope({"t": None})) == {"at": 7}, "a topic is Kafka's"
