"""What only some sources can do: each capability behaves the same in all kinds that have it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from headrace.core.context import Context
from headrace.core.kinds import kinds
from headrace.core.positions import Positions
from headrace.core.source import (
    Backfills,
    HasPlaces,
    HasPositions,
    HasSample,
    HasSplits,
    PacksPosition,
    RecordSource,
    SpoilsRecords,
    positions_of,
)
from headrace.project.model import StreamSpec

CAPABILITIES = {
    HasPositions: {"http", "kafka", "lake"},
    PacksPosition: {"http", "kafka"},
    HasSample: {"files", "http", "kafka"},
    HasPlaces: {"files", "kafka"},
    HasSplits: {"kafka"},
    Backfills: {"kafka"},
    SpoilsRecords: {"generate"},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "files": {"path": "in"},
    "generate": {"rate": 1, "fields": {"n": {"choice": ["a"]}}},
    "http": {"path": "/v1/x"},
    "kafka": {"brokers": "127.0.0.1:1", "topic": "orders"},
    "lake": {"path": "table"},
}


def source(kind: str, **more: Any) -> Any:
    return kinds("sources")[kind].model_validate({"type": kind, **OPTIONS[kind], **more})


def able(capability: type) -> list[str]:
    return sorted(CAPABILITIES[capability])


@pytest.fixture
def context(tmp_path: Path) -> Context:
    (tmp_path / "in").mkdir()
    return Context(tmp_path, str(tmp_path / "state"))


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_who_has_it(capability: type) -> None:
    assert {name for name in kinds("sources") if isinstance(source(name), capability)} == CAPABILITIES[capability]


@pytest.mark.parametrize("kind", sorted(OPTIONS))
def test_positions_connect_only_when_used(kind: str, context: Context) -> None:
    positions = positions_of(source(kind), context)
    positions.close()
    assert (type(positions) is Positions) is (kind not in able(HasPositions))


@pytest.mark.parametrize("kind", able(PacksPosition))
@pytest.mark.parametrize(("high", "low"), [(0, 0), (2**19 - 1, 2**44 - 1), (3, 1_234_567_890)])
def test_a_packed_position_is_the_position(kind: str, high: int, low: int) -> None:
    packed = source(kind).packed_position
    position = packed.unpack((high << 44) | low)
    assert (position[packed.high], position[packed.low]) == (high, low)
    assert set(position) == set(source(kind).position)
    assert packed.expression == f"(shiftleft(cast({packed.high} AS bigint), 44) | {packed.low})"


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=pytest.mark.service) if k == "kafka" else k for k in able(HasSample)]
)
def test_a_source_without_records_gives_an_empty_sample(
    kind: str, context: Context, request: pytest.FixtureRequest
) -> None:
    more = {}
    if kind == "kafka":
        topic: Callable[[], str] = request.getfixturevalue("topic")
        more = {"brokers": request.getfixturevalue("kafka").address, "topic": topic()}
    empty = source(kind, **more)
    assert isinstance(empty, RecordSource)
    assert isinstance(empty, HasSample)
    assert empty.sample(context, 10) == []


@pytest.mark.parametrize("kind", able(HasPlaces))
def test_places_are_those_of_a_sink_that_writes_there(kind: str, context: Context) -> None:
    places = source(kind).places(context)
    assert places
    assert all(place.meets(place) for place in places)
    writer = {"files": {"path": "in"}, "kafka": {**OPTIONS["kafka"], "format": "json"}}[kind]
    sink: Any = kinds("sinks")[kind].model_validate({"type": kind, **writer})
    assert any(there.meets(here) for there in sink.places(context, {}) for here in places)


@pytest.mark.service
@pytest.mark.parametrize("kind", able(HasSplits))
def test_splits_are_the_parts_that_are_read_in_parallel(kind: str, context: Context, kafka: Any, topic: Any) -> None:
    assert source(kind, brokers=kafka.address, topic=topic(partitions=3)).splits(context) == 3


@pytest.mark.parametrize("kind", sorted(OPTIONS))
def test_history_comes_only_before_a_source_that_can_wait(kind: str) -> None:
    spec = {"source": source(kind), "format": "json", "backfill": {"files": "old"}}
    if kind in able(Backfills):
        assert source(kind).backfill_obstacle() is None
        assert StreamSpec.model_validate(spec).backfill is not None
    else:
        with pytest.raises(ValidationError, match="such as kafka"):
            StreamSpec.model_validate(spec)


@pytest.mark.parametrize("kind", able(SpoilsRecords))
def test_records_stay_unless_some_are_to_be_spoilt(kind: str) -> None:
    records: Any = object()
    assert source(kind).encoded(records) is records
    assert (source(kind).needs_format, source(kind, bad_records=0.5).needs_format) == (False, True)
