"""Targets, scopes and files of offsets, and what a source can do that knows nothing of positions."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from headrace.core.errors import Exit, ProjectError
from headrace.core.positions import (
    AtOffset,
    Current,
    Earliest,
    Explicit,
    Latest,
    Positions,
    ShiftBy,
    Split,
    SplitScope,
    Target,
    parse_offsets,
    parse_scope,
    parse_time,
)
from headrace.sources.kafka.positions import _moved


@pytest.mark.parametrize(
    ("texts", "inside", "outside"),
    [
        ([], [("a", 0), ("b", 9)], []),
        (["a"], [("a", 0), ("a", 7)], [("b", 0)]),
        (["a:0,2", "b"], [("a", 0), ("a", 2), ("b", 5)], [("a", 1), ("c", 0)]),
    ],
)
def test_a_scope_is_topics_or_some_of_their_partitions(
    texts: list[str], inside: list[tuple[str, int]], outside: list[tuple[str, int]]
) -> None:
    scope = parse_scope(texts)
    assert all(scope.holds(*split) for split in inside)
    assert not any(scope.holds(*split) for split in outside)


@pytest.mark.parametrize("text", ["", ":1", "a:", "a:x", "a:1;2"])
def test_a_scope_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="topic"):
        parse_scope([text])


def test_a_scope_must_be_something_the_flow_reads() -> None:
    splits = [Split("a", p, 0, 10, 5) for p in range(2)]
    SplitScope({"a": frozenset({1})}).require(splits)
    for wrong in (SplitScope({"b": None}), SplitScope({"a": frozenset({1, 2})})):
        with pytest.raises(ProjectError) as refused:
            wrong.require(splits)
        assert (refused.value.code, refused.value.exit_code) == ("unknown-partition", Exit.NOT_FOUND)
        assert "a:0, a:1" in (refused.value.hint or "")


@pytest.mark.parametrize(
    "text",
    [
        '{"a": {"0": 5, "1": -2}}',
        "a,0,5\na,1,-2\n",
        '"group","topic","partition","offset"\n"g","a",0,5\n"g","a",1,-2\n',
    ],
)
def test_offsets_come_as_json_or_as_kafkas_tools_export_them(text: str) -> None:
    assert parse_offsets(text) == {"a": {0: 5, 1: -2}}


@pytest.mark.parametrize("text", ["", "a,b,c", '{"a": 5}', '{"a": {"x": 1}}', "{", "a,0"])
def test_a_file_without_offsets_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_offsets(text)


def test_a_time_without_a_zone_is_utc() -> None:
    assert parse_time("2026-01-31T12:00:00") == parse_time("2026-01-31T13:00:00+01:00")
    assert parse_time("2026-01-31") == datetime(2026, 1, 31, tzinfo=UTC)


def test_lag_is_unknown_rather_than_zero() -> None:
    assert Split("a", 0, 0, 10, 4).lag == 6
    assert Split("a", 0, 0, 10, None).lag is None
    assert Split("a", 0, 0, 10, 12).lag == 0, "a topic that was cut off behind us"
    assert Split("t", 0, 0, 10, 4, counts_records=False).lag is None
    assert Split("t", 0, 0, 10, 10, counts_records=False).lag == 0


def test_a_source_without_positions_can_begin_at_its_beginning_only() -> None:
    known = Positions("files in/*.json")
    assert known.resolve(Earliest(), None, SplitScope()) is None
    for target in (Latest(), Current(), AtOffset(3)):
        with pytest.raises(ProjectError) as refused:
            known.resolve(target, None, SplitScope())
        assert (refused.value.code, refused.value.exit_code) == ("rewind-unsupported", Exit.CONFLICT)
        assert "files in/*.json" in refused.value.message


@pytest.mark.parametrize(
    ("target", "at", "wanted"),
    [
        (Earliest(), 50, 10),
        (Latest(), 50, 100),
        (AtOffset(70), 50, 70),
        (Current(), 50, 50),
        (Current(), None, 100),
        (ShiftBy(-20), 50, 30),
        (ShiftBy(20), 50, 70),
        (Explicit({"t": {0: 33}}), 50, 33),
        (Explicit({"t": {0: -2}}), 50, 10),
        (Explicit({"t": {0: -1}}), 50, 100),
        (Explicit({"t": {1: 33}}), 50, 50),
    ],
)
def test_targets_mean_what_kafkas_tool_means(target: Target, at: int | None, wanted: int) -> None:
    assert _moved(target, at, 10, 100, "t:0") == wanted


def test_a_partition_without_a_position_cannot_be_shifted() -> None:
    with pytest.raises(ProjectError) as refused:
        _moved(ShiftBy(1), None, 0, 9, "t:0")
    assert refused.value.code == "no-position"
