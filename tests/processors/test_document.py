from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.processors.steps import Around

from headrace.core.errors import ProjectError
from headrace.processors._steps.json_text import java_double, path_of, with_doubles
from headrace.processors.document import Document


def made(tmp_path: Path, rows: dict[str, Any], **options: Any) -> list[str]:
    return list(Around(tmp_path).work(Document(**options), pa.RecordBatch.from_pydict(rows))["value"].to_pylist())


def one(tmp_path: Path, text: str, **options: Any) -> str:
    (found,) = made(tmp_path, {"value": [text]}, **options)
    return found


def test_columns_and_constants_are_put_at_their_paths(tmp_path: Path) -> None:
    rows = {
        "value": [
            '{"eid":"LOG","flags":{"a":1.0},"ets":1529068016090.50,"n":12345678901234567890123}',
            '{"flags":null}',
        ],
        "done": [True, None],
        "size": pa.array([2**62, 5], pa.int64()),
        "extra": ['{"src": "x",\n "big":1E400}', None],
    }
    sets = {
        "flags.done": {"column": "done"}, "type": {"value": "events"}, "metadata": {"json": "extra"},
        "a.b.c": {"column": "size"}, "nothing": {"value": None},
    }  # fmt: skip
    assert made(tmp_path, rows, set=sets) == [
        '{"eid":"LOG","flags":{"a":1.0,"done":true},"ets":1529068016090.50,"n":12345678901234567890123,"type":"events",'
        '"metadata":{"src": "x", "big":1E400},"a":{"b":{"c":4611686018427387904}},"nothing":null}',
        '{"flags":null,"type":"events","a":{"b":{"c":5}},"nothing":null}',
    ]


def test_types_of_columns(tmp_path: Path) -> None:
    kind = pa.struct([("x", pa.int64()), ("y", pa.string()), ("l", pa.list_(pa.struct([("z", pa.float64())])))])
    rows = pa.RecordBatch.from_pydict(
        {
            "value": ["{}"],
            "s": pa.array([{"x": None, "y": 'ä\n"', "l": [{"z": None}, {"z": 1.0}, None]}], kind),
            "m": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
            "t": pa.array([datetime(2026, 1, 2, 3, 4, 5, 600000, UTC)], pa.timestamp("us", "UTC")),
            "far": pa.array([300_000_000_000_000_000], pa.timestamp("us", "UTC")),
            "d": pa.array([Decimal("1234567890123456789.10")]),
            "b": pa.array([b"\xff"]),
            "nan": pa.array([math.nan]),
        }
    )
    step = Document(set={name: {"column": name} for name in rows.schema.names[1:]} | {"y": {"column": "s.y"}})
    (text,) = Around(tmp_path).work(step, rows)["value"].to_pylist()
    assert text == (
        '{"s":{"y":"ä\\n\\"","l":[{},{"z":1.0},null]},"m":{"k":1},"t":"2026-01-02T03:04:05.600000Z",'
        '"far":"11476-08-15 05:20:00.000000Z","d":1234567890123456789.10,"b":"/w==","nan":null,"y":"ä\\n\\""}'
    )


def test_what_stands_where_an_object_must_be_gives_way_and_removal_comes_first(tmp_path: Path) -> None:
    sets = {"flags.new": {"value": 1}, "context.pdata.id": {"value": {"a": []}}}
    text = '{"flags":{"old":1},"context":"x","edata":{"values":[1],"keep":{}},"a.b":2}'
    found = one(
        tmp_path, text, set=sets, remove=["flags", "edata.values", "edata.keep.no", "no.no", "context.x", r"a\.b"]
    )
    assert found == '{"context":{"pdata":{"id":{"a":[]}}},"edata":{"keep":{}},"flags":{"new":1}}'


def test_one_line_and_the_last_of_two_equal_names(tmp_path: Path) -> None:
    text = '{ "a" : {\r\n "x\\n" : "\\r"\n},\n"b":1,"b":2 }'
    assert one(tmp_path, text, set={"c": {"value": 1}}) == '{"a":{ "x\\n" : "\\r"},"b":2,"c":1}'


def test_what_is_no_object_is_a_dead_letter_or_what_is_asked_for(tmp_path: Path) -> None:
    bad = ["nonsense", "[1]", '{"a":1', "", None, '{"a":"\\ud800"}', '{"a":' + "[" * 100_000 + "]" * 100_000 + "}"]
    rows = pa.RecordBatch.from_pydict({"value": [*bad, '{"a":1}', '{"a":2}'], "j": ["1"] * len(bad) + ["{", "2"]})
    around = Around(tmp_path)
    options: dict[str, Any] = {"set": {"j": {"json": "j"}}}
    assert around.work(Document(**options), rows)["value"].to_pylist() == ['{"a":2,"j":2}']
    letters = around.letters()
    assert [letter["reason"] for letter in letters] == ["not-json"] * (len(bad) + 1)
    assert {"it is JSON, but no object", "there is no text", "'j': Input data was truncated"} <= {
        letter["detail"] for letter in letters
    }
    kept = around.work(Document(invalid="keep", **options), rows)["value"].to_pylist()
    assert kept == [*bad, '{"a":1}', '{"a":2,"j":2}']
    with pytest.raises(ProjectError) as caught:
        around.work(Document(invalid="fail", **options), rows)
    assert caught.value.code == "invalid-row"


def test_a_text_that_is_not_utf_8_has_marks_for_what_cannot_be_read(tmp_path: Path) -> None:
    broken = pa.array([b'{"a":"\xff"}']).view(pa.string())
    assert made(tmp_path, {"value": broken}, set={"b": {"value": 1}}) == ['{"a":"�","b":1}']


# what Java 17 prints
DOUBLES = [
    (1529068016090, "1.52906801609E12"), (46, "46.0"), (0.00001, "1.0E-5"), (1.0, "1.0"), (0, "0.0"), (-0.0, "-0.0"),
    (0.001, "0.001"), (0.0009, "9.0E-4"), (9999999, "9999999.0"), (10000000, "1.0E7"), (12345678.9, "1.23456789E7"),
    (-1.5e300, "-1.5E300"), (1571999041881, "1.571999041881E12"), (100, "100.0"),
    (123456789012345680, "1.2345678901234568E17"),
    (0.1, "0.1"), (1e-10, "1.0E-10"), (-25000000, "-2.5E7"),
]  # fmt: skip


def test_numbers_as_java_writes_doubles(tmp_path: Path) -> None:
    assert [java_double(float(value)) for value, _ in DOUBLES] == [text for _, text in DOUBLES]
    text = '{"ets":1529068016090,"a":[1,-2.50,"3 \\" 4",{"5":6e0}],"x":1e999,"big":12345678901234567890}'
    rows = {"value": [text], "n": pa.array([7]), "d": pa.array([8e9]), "j": ["[9]"]}
    sets = {"n": {"column": "n"}, "d": {"column": "d"}, "j": {"json": "j"}, "c": {"value": 10}}
    assert made(tmp_path, rows, numbers="double", set=sets) == [
        '{"ets":1.52906801609E12,"a":[1.0,-2.5,"3 \\" 4",{"5":6.0}],"x":1e999,"big":1.2345678901234567E19,'
        '"n":7,"d":8.0E9,"j":[9.0],"c":10}'
    ]


@pytest.mark.parametrize("bad", ["01", "1-2", "1.", ".5", "-", "1e", "00", "-01", "1x", '"1', "+1"])
def test_doubles_make_no_json_of_what_is_none(tmp_path: Path, bad: str) -> None:
    assert made(tmp_path, {"value": [f'{{"a":{bad}}}']}, numbers="double") == []


@settings(max_examples=100, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_double_is_read_back_as_the_same(value: float) -> None:
    text = java_double(value)
    assert float(text) == value
    assert math.copysign(1, float(text)) == math.copysign(1, value)
    assert "." in text


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=4)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)


def put(document: Any, path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        if not isinstance(document.get(name), dict):
            document[name] = {}
        document = document[name]
    document[path[-1]] = value


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(NAMES, VALUES, max_size=5), st.lists(st.tuples(st.lists(NAMES, min_size=1, max_size=3), VALUES)),
    st.sampled_from([None, 2]), st.booleans(),
)  # fmt: skip
def test_any_value_at_any_path_and_the_rest_untouched(
    document: Any, puts: Any, indent: int | None, ascii_only: bool
) -> None:
    paths = {".".join(name.replace("\\", "").replace(".", "\\.") or "x" for name in path): v for path, v in puts}
    text = json.dumps(document, indent=indent, ensure_ascii=ascii_only)
    step = Document(set={path: {"value": value} for path, value in paths.items()} | {"end": {"value": 0}})
    (found,) = Around(Path("unused")).work(step, pa.RecordBatch.from_pydict({"value": [text]}))["value"].to_pylist()
    expected = json.loads(text)
    for path, value in paths.items():
        put(expected, path_of(path), value)
    put(expected, ("end",), 0)
    assert json.dumps(json.loads(found)) == json.dumps(expected)
    assert "\n" not in found
    assert json.loads(with_doubles(found)) == json.loads(found) or "E" in with_doubles(found)


def test_options_are_checked() -> None:
    for options in (
        {}, {"set": {"a..b": {"value": 1}}}, {"set": {"a": {}}}, {"set": {"a": {"value": 1, "column": "x"}}},
        {"set": {"a": {"column": None}}}, {"remove": [""]},
    ):  # fmt: skip
        with pytest.raises(ValidationError):
            Document(**options)  # type: ignore[arg-type]
    step = Document(set={"a": {"column": "s.x"}, "b": {"json": "j"}})
    given_ = pa.schema([("value", pa.string()), ("s", pa.struct([("x", pa.int64())])), ("j", pa.string())])
    assert step.output(given_) == given_
    assert step.uses(frozenset({"q"})) == {"q", "value", "s", "s.x", "j"}
    assert step.label == "document value: set a, b"
    for bad, code in (("j2", "unknown-column"), ("s", "step-type")):
        with pytest.raises(ProjectError) as caught:
            Document(set={"a": {"json": bad}}).output(given_)
        assert caught.value.code == code
