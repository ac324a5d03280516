"""The stream source `http`: what was posted is read once, in order, and can be read again while it is kept."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from headrace.core.context import Context, ReadContext
from headrace.core.endpoints import Op
from headrace.core.errors import ProjectError
from headrace.core.positions import AtOffset, AtTime, Current, Earliest, Explicit, Latest, ShiftBy, SplitScope
from headrace.log.inbox import Inbox, InboxEntry, Pushed
from headrace.sources.http import HttpSource
from headrace.sources.http.positions import HttpPositions, inbox_errors

PATH = "/v1/telemetry"
SOURCE = HttpSource(path=PATH)


def posted(folder: Path, *numbers: int) -> Inbox:
    """An inbox to which these were added, in one commit."""
    inbox = SOURCE.inbox(Context(folder, str(folder / "state")).log_path)
    inbox.add([Pushed([InboxEntry(Op.UPSERT, b'{"n":%d}' % n)]) for n in numbers])
    return inbox


def positions(folder: Path) -> HttpPositions:
    found = SOURCE.positions(Context(folder, str(folder / "state")))
    assert isinstance(found, HttpPositions)
    return found


def at(commit: int) -> dict[str, dict[str, int]]:
    return {PATH: {"0": commit}}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"path": "v1"}, "pattern"),
        ({"path": "/sql"}, "which the API uses"),
        ({"path": "/v1", "fields": {"a": {}}}, "needs one of"),
        ({"path": "/v1", "fields": {"a": {"now": "ms", "uuid": True}}}, "needs one of"),
        ({"path": "/v1", "reply": {"ets": "{nov}"}}, "did you mean 'now'"),
        ({"path": "/v1", "health": {"path": "/metrics"}}, "which the API uses"),
        ({"path": "/v1", "health": {"path": "/health", "reply": "{code}"}}, "is not a known word"),
        ({"path": "/v1", "refusal": [{"a": "{position}"}]}, "is not a known word"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        HttpSource.model_validate(options)


def test_positions_are_commits_and_lag_counts_records(tmp_path: Path) -> None:
    posted(tmp_path, 1, 2, 3)
    posted(tmp_path, 4, 5)
    known = positions(tmp_path)
    (split,) = known.measure(at(2))
    assert (split.start, split.end, split.position, split.lag) == (1, 3, 2, 2)
    assert split.lag_s is not None
    (read,) = known.measure(at(3))
    assert (read.lag, read.lag_s) == (0, 0.0)
    assert known.measure(None)[0].lag is None
    assert known.of_checkpoint({"other": {"0": 1}}) is None
    assert known.reached(at(2)) == {PATH: (2,)}


@pytest.mark.parametrize(
    ("target", "commit"),
    [
        (Earliest(), 1),
        (Latest(), 4),
        (Current(), 2),
        (AtOffset(3), 3),
        (AtOffset(99), 4),
        (ShiftBy(-9), 1),
        (ShiftBy(1), 3),
        (Explicit({PATH: {0: -2}}), 1),
        (Explicit({PATH: {0: -1}}), 4),
        (Explicit({PATH: {0: 3}}), 3),
        (AtTime(datetime(2020, 1, 1, tzinfo=UTC)), 1),
        (AtTime(datetime.now(UTC) + timedelta(days=1)), 4),
    ],
)
def test_a_flow_can_begin_anywhere(tmp_path: Path, target: Any, commit: int) -> None:
    for number in range(3):
        posted(tmp_path, number)
    assert positions(tmp_path).resolve(target, at(2), SplitScope()) == at(commit)


def test_what_all_flows_have_read_is_let_go_when_it_is_old_enough(tmp_path: Path) -> None:
    for number in range(4):
        inbox = posted(tmp_path, number)
    known = positions(tmp_path)
    known.release([at(3), None])
    assert (inbox.read(), inbox.begin()) == (0, 0)
    known.release([at(4), at(3)])
    assert (inbox.read(), inbox.begin()) == (2, 0)
    inbox.release(3, timedelta(0))
    assert (inbox.read(), inbox.begin()) == (3, 3)
    with pytest.raises(ProjectError) as refused, inbox_errors(PATH):
        inbox.segments(1)
    assert refused.value.code == "http-inbox-cut"
    assert known.resolve(Earliest(), at(1), SplitScope()) == at(4)


def test_an_inbox_with_less_than_was_read_is_refused(tmp_path: Path) -> None:
    from headrace.sources.http.posted import Posts, _PostedStreamReader

    posted(tmp_path, 1)
    reading = ReadContext(Context(tmp_path, str(tmp_path / "state")), "telemetry")
    reader = _PostedStreamReader(Posts(SOURCE.path, SOURCE.max_age, reading, 2))
    assert reader.latestOffset(at(1), reader.getDefaultReadLimit()) == at(2)
    with pytest.raises(ProjectError) as refused:
        reader.latestOffset(at(9), reader.getDefaultReadLimit())
    assert refused.value.code == "http-inbox-lost"


def test_a_sample_is_read_without_spark(tmp_path: Path) -> None:
    posted(tmp_path, 1, 2)
    assert SOURCE.sample(Context(tmp_path, str(tmp_path / "state")), 1) == [b'{"n":1}']


@pytest.mark.spark
def test_the_inbox_is_read_as_a_stream_once_and_as_it_stands(spark: Any, tmp_path: Path) -> None:
    def read() -> list[list[Any]]:
        found: list[list[Any]] = []
        context = ReadContext(Context(tmp_path, str(tmp_path / "state")), "telemetry", max_records=2)
        query = (
            SOURCE.read(spark, context)
            .writeStream.foreachBatch(lambda batch, _: found.append(batch.orderBy("_commit", "_number").collect()))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return found

    posted(tmp_path, 1, 2, 3)
    posted(tmp_path, 4)
    batches = [[(json.loads(row.value)["n"], row._commit, row._number) for row in batch] for batch in read()]
    assert batches == [[(1, 1, 0), (2, 1, 1), (3, 1, 2)], [(4, 2, 0)]]
    posted(tmp_path, 5)
    assert [[json.loads(row.value)["n"] for row in batch] for batch in read()] == [[5]]
    standing = SOURCE.read(spark, ReadContext(Context(tmp_path, str(tmp_path / "state")), "telemetry", streaming=False))
    assert sorted(json.loads(row.value)["n"] for row in standing.collect()) == [1, 2, 3, 4, 5]
