"""What sinks say to a view before anything runs: whether they can hold it, by which key, and what makes no sense."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from headrace.core.capabilities import Candidate, HoldsView, sink_of_view
from headrace.core.context import Context
from headrace.core.errors import ProjectError
from headrace.core.kinds import kinds
from headrace.core.sink import Sink

GIVEN: dict[str, dict[str, Any]] = {
    "archive": {"path": "archive", "time": "at"},
    "console": {},
    "endpoint": {"name": "totals"},
    "files": {"path": "out"},
    "http": {"url": "http://127.0.0.1:1"},
    "influxdb": {"url": "http://127.0.0.1:1", "database": "d", "measurement": "m"},
    "kafka": {"brokers": "a:9092", "topic": "totals"},
    "lake": {"path": "lake/totals"},
    "noop": {},
    "opensearch": {"url": "http://127.0.0.1:1", "index": "totals"},
    "postgres": {"url": "postgresql://127.0.0.1:1/shop", "table": "totals"},
    "redis": {"url": "redis://127.0.0.1:1/0", "key": "totals:{region}:{id}"},
}
KEY = ("region", "id")


def sink(kind: str, **options: Any) -> Any:
    return cast(Sink, kinds("sinks")[kind].model_validate({"type": kind} | GIVEN[kind] | options))


def refusal(kind: str, of: tuple[str, ...] = KEY, **options: Any) -> ProjectError:
    with pytest.raises(ProjectError) as refused:
        sink_of_view(sink(kind, **options), of)
    return refused.value


def test_sinks_hold_views_or_say_which_do() -> None:
    able = [name for name, kind in kinds("sinks").items() if issubclass(kind, HoldsView)]
    refusing = {kind for kind in GIVEN if not isinstance(sink(kind), HoldsView)}
    assert refusing == {"archive", "files", "http", "influxdb"}
    for kind in refusing:
        error = refusal(kind)
        assert error.code == "sink-takes-no-changes"
        assert error.hint == f"sinks that hold views: {', '.join(able)}"
    assert set(able) >= {"console", "endpoint", "kafka", "lake", "noop", "opensearch", "postgres", "redis"}
    for kind in set(GIVEN) - refusing:
        held = sink(kind).of_view(KEY)
        assert held.of_view(KEY) == held


@pytest.mark.parametrize("kind", ["endpoint", "kafka", "lake", "opensearch", "postgres"])
def test_the_key_of_a_view_is_that_of_its_sink(kind: str) -> None:
    option = "id" if kind == "opensearch" else "key"
    assert getattr(sink(kind).of_view(KEY), option) == list(KEY)
    assert getattr(sink(kind, **{option: ["id", "region"]}).of_view(KEY), option) == ["id", "region"]
    error = refusal(kind, **{option: ["id"]})
    assert (error.code, "the key of the view is region, id" in error.message) == ("sink-view-key", True)
    assert refusal(kind, ()).code == "sink-needs-key"


def test_what_a_sink_holds_is_laid_out_by_the_key_of_the_view() -> None:
    assert sink("endpoint").of_view(KEY).layout["key"] == list(KEY)
    assert sink("lake").of_view(KEY).single_writer
    assert sink("endpoint").of_view(KEY).label == "endpoint totals by region, id"


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("endpoint", {"key": list(KEY), "sequence": "at"}),
        ("endpoint", {"key": list(KEY), "delete": "gone"}),
        ("endpoint", {"key": list(KEY), "operation": "op"}),
        ("kafka", {"topic_column": "to"}),
        ("kafka", {"headers_column": "h"}),
        ("lake", {"key": list(KEY), "sequence": "at"}),
        ("opensearch", {"id": list(KEY), "delete": "gone"}),
        ("postgres", {"key": list(KEY), "sequence": "at"}),
        ("redis", {"ttl": "1h"}),
    ],
)
def test_options_about_rows_that_are_no_changes_are_refused(kind: str, options: dict[str, Any]) -> None:
    assert refusal(kind, **options).code == "sink-view-option"


def test_a_row_must_not_leave_its_place_behind() -> None:
    assert refusal("redis", key="totals:{id}").code == "sink-view-key"
    assert refusal("redis", key="{region}:{id}:{day}").code == "sink-view-key"
    assert refusal("opensearch", index="totals-{day}").code == "sink-view-key"
    sink("opensearch", index="totals-{region}").of_view(KEY)


def test_only_a_journal_needs_no_key() -> None:
    sink("kafka", changes="debezium").of_view(())
    sink("console").of_view(())
    assert refusal("kafka", ()).code == "sink-needs-key"


def test_a_topic_of_changes_is_for_views_alone(tmp_path: Path) -> None:
    context, out = Context(tmp_path, "state"), sink("kafka", changes="debezium")
    with pytest.raises(ProjectError) as refused:
        out.check_rows(context, list(KEY), "append", None)
    assert refused.value.code == "kafka-changes"
    out.of_view(KEY).check_rows(context, list(KEY), "append", None)
    side = Candidate("flow", "sink", "g2", context)
    assert "rows stay" in sink("kafka").candidate_effect(side)
    with pytest.raises(ProjectError) as mixture:
        sink("kafka").of_view(KEY).candidate_effect(side)
    assert mixture.value.code == "beside-unsupported"
    with pytest.raises(ValueError, match="is JSON"):
        sink("kafka", changes="debezium", format="avro")
