from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.core.context import Context
from headrace.processors._steps.project_class import find_class

APP = Path(__file__).parents[3] / "apps/telemetry"


def read(*texts: str, compat: str = "none") -> list[dict[str, Any]]:
    changes = find_class("processors/contents.py:Changes", Context(APP, "")).make({"compat": compat})
    given = pa.RecordBatch.from_pydict({"value": [*texts], "_offset": [*range(len(texts))]})
    made: list[dict[str, Any]] = changes.process(given).to_pylist()
    assert [one["value"] for one in made] == [*texts]
    return made


def event(properties: str, ets: str = "5") -> str:
    return f'\t{{"nodeUniqueId": "c", "ets": {ets}, "transactionData": {{"properties": {properties}}}}}'


def test_values_stay_as_they_are_written() -> None:
    properties = (
        '{"a": {"ov": 0, "nv": 1.0}, "b": {"nv": 1e400}, "c": {"nv": {"x": 1, "x": 2}}, "d": {"nv": null}, "e": null, '
        '"f": {"ov": 1}, "keywords": {"nv": "k"}, "medium": {"nv": ["m"]}}'
    )
    [one] = read(event(properties))
    assert one["properties"] == '{"a":1.0,"b":1e400,"c":{"x": 1, "x": 2},"keywords":["k"],"medium":["m"]}'
    assert (one["content_id"], one["ets"], one["codes"], one["problem"]) == ("c", 5, [], None)


@pytest.mark.parametrize(
    ("text", "corrected", "upstream"),
    [
        ("2020-06-14T18:26:10.133+0000", 1592159170133, 1592159170000),
        ("2020-06-14T18:26:10.133+0530", 1592139370133, 1592159170000),
        ("2020-06-14", 1592092800000, "2020-06-14"),
        ("12:30", "12:30", "12:30"),
        ("99999-01-01T00:00:00", "99999-01-01T00:00:00", "99999-01-01T00:00:00"),
        ("", "", ""),
    ],
)
def test_dates_become_milliseconds(text: str, corrected: int | str, upstream: int | str) -> None:
    given = event(json.dumps({"lastUpdatedOn": {"nv": text}}))
    for compat, expected in (("none", corrected), ("sunbird", upstream)):
        [one] = read(given, compat=compat)
        assert json.loads(one["properties"]) == {"lastUpdatedOn": expected}


@pytest.mark.parametrize(
    ("nv", "codes"),
    [
        ('["A", null, "", 5, "A"]', ["A", "", "5"]),
        ('{"R": 0, "S": 1}', ["R", "S"]),
        ('"{\\"R\\": 0}"', ["R"]),
        ('"text"', []),
        ("5", []),
    ],
)
def test_dial_codes_of_a_content(nv: str, codes: list[str]) -> None:
    for name in ("dialcodes", "reservedDialCodes"):
        [one] = read(event(f'{{"{name}": {{"nv": {nv}}}}}'))
        assert one["codes"] == codes


def test_what_cannot_be_read_says_so_and_nothing_else_is_touched() -> None:
    wrong = ["", "no JSON", "[]", "null", '{"a":1}}', "[" * 9000, '{"nodeUniqueId": "c", "transactionData": 5}']
    wrong += [event(one) for one in ('"text"', "[1]", '{"name": "x"}', '{"name": [1], "board": {"nv": "y"}}')]
    found = read(*wrong, event('{"a": {"nv": 1}}'), event("null"), '{"nodeUniqueId": 5}', '{"nodeUniqueId": ""}')
    assert all(one["problem"] and one["properties"] is None for one in found[: len(wrong)])
    assert [one["problem"] for one in found[len(wrong) :]] == [None] * 4
    assert [one["content_id"] for one in found[len(wrong) :]] == ["c", "c", "5", None]


@pytest.mark.parametrize("ets", ['"x"', "null", "1e300", "9e17", "-1", "{}"])
def test_a_time_that_is_none(ets: str) -> None:
    [one] = read(event("{}", ets))
    assert (one["ets"], one["problem"]) == (None, None)
