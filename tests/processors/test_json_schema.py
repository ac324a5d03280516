from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError
from tests.processors.steps import Around

from headrace.core.errors import ProjectError
from headrace.processors.json_schema import JsonSchema
from headrace.processors.json_schema.validators import Validators, errors_of, read_folder

ROOT = Path(__file__).parent.parent.parent
SCHEMAS = ROOT / "apps" / "telemetry" / "schemas"
FIXTURES = ROOT / "tests" / "apps" / "telemetry" / "fixtures"


def event(name: str) -> dict[str, Any]:
    return dict(json.loads((FIXTURES / name).read_text()))


@pytest.fixture(scope="module")
def telemetry() -> Validators:
    """As the application has them, all compiled."""
    known = Validators(4, read_folder(SCHEMAS / "telemetry" / "3.0", "3.0"))
    known.check("3.0")
    return known


@pytest.mark.parametrize(
    ("number", "wrong"),
    [(1, []), (2, []), (3, []), (4, []), (5, []), (12, []), (15, []),
     (7, [("required", ""), ("required", ""), ("required", ""), ("type", "/ets"), ("format", "/ets"), ("type", "/ver"),
          ("enum", "/ver")]),
     (13, [("type", f"/edata/extra/{n}/value") for n in range(7)]), (16, [("required", "/edata")])],
)  # fmt: skip
def test_the_events_of_the_preprocessor(telemetry: Validators, number: int, wrong: list[tuple[str, str]]) -> None:
    given = event(f"pipeline-preprocessor/EVENT_{number}.json")
    validator = telemetry.get(given["eid"].lower() + ".json")
    assert [(error["keyword"], error["path"]) for error in errors_of(validator, given, 20)] == wrong
    assert validator.is_valid(given) == (not wrong)


def test_an_event_of_no_kind_has_no_schema(telemetry: Validators) -> None:
    assert telemetry.get(event("pipeline-preprocessor/EVENT_8.json")["eid"].lower() + ".json") is None
    assert telemetry.get(None) is None
    assert telemetry.get("../secret.json") is None


@pytest.mark.parametrize(
    ("name", "schema", "valid"),
    [("VALID_DENORM_TELEMETRY_EVENT", "telemetry/envelope.json", True),
     ("VALID_DENORM_SUMMARY_EVENT", "summary/me_workflow_summary.json", True),
     ("INVALID_DENORM_TELEMETRY_EVENT", "telemetry/envelope.json", False)],
)  # fmt: skip
def test_the_events_of_the_druid_validator(name: str, schema: str, valid: bool) -> None:
    validator = Validators(4, read_folder(SCHEMAS, "schemas")).get(schema)
    assert validator.is_valid(event(f"druid-events-validator/{name}.json")) == valid


def write(folder: Path, **schemas: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, schema in schemas.items():
        (folder / f"{name}.json").write_text(schema if isinstance(schema, str) else json.dumps(schema))
    return folder


def test_references_mean_files_and_ids_mean_nothing(tmp_path: Path) -> None:
    common = {"id": "http://x.example/common", "definitions": {"name": {"type": "string", "minLength": 1}}}
    order = {
        "id": "http://x.example/orders/order",
        "properties": {
            "id": {"id": "http://x.example/id", "type": "number"},
            "name": {"$ref": "resource:/any/where/common.json#/definitions/name"},
            "near": {"$ref": "common.json#/definitions/name"},
            "own": {"id": "http://other.example/", "properties": {"x": {"$ref": "#/definitions/own"}}},
            "enum": {"$ref": "#/definitions/own"},
            "kind": {"enum": [{"id": "stays"}]},
        },
        "definitions": {"own": {"type": "boolean"}},
        "additionalProperties": False,
    }
    write(tmp_path, common=common)
    write(tmp_path / "deep", order=order | {"properties": order["properties"] | {"near": {"$ref": "../common.json"}}})
    known = Validators(4, read_folder(write(tmp_path, order=order), "s"))
    known.check("s")
    good = {"id": 1.5, "name": "a", "near": "b", "own": {"x": True}, "enum": False, "kind": {"id": "stays"}}
    assert errors_of(known.get("order.json"), good, 9) == []
    bad = {"id": "1", "name": "", "near": 1, "own": {"x": 1}, "enum": 0, "kind": {}, "a/b~c": 1}
    found = {error["path"]: error["keyword"] for error in errors_of(known.get("order.json"), bad, 9)}
    assert found == {
        "/id": "type", "/name": "minLength", "/near": "type", "/own/x": "type", "/enum": "type", "/kind": "enum",
        "": "additionalProperties",
    }  # fmt: skip
    assert len(errors_of(known.get("order.json"), bad, 3)) == 3
    (long,) = errors_of(known.get("order.json"), {"name": ["x" * 10_000]}, 9)
    assert len(long["message"]) == 300


@pytest.mark.parametrize(
    "schema",
    ["{", {"type": "nothing"}, {"$ref": "gone.json"}, {"$ref": "http://x.example/gone.json"}, {"$ref": "#/nowhere"},
     {"pattern": "("}, "[" * 100_000],
)  # fmt: skip
def test_a_folder_with_a_broken_schema_is_refused(tmp_path: Path, schema: Any) -> None:
    write(tmp_path / "s", order=schema)
    with pytest.raises(ProjectError) as caught:
        JsonSchema(schemas="s", schema="'order.json'", draft=4).bound(Around(tmp_path))
    assert caught.value.code == "bad-json-schema"
    assert "s/order.json" in caught.value.message


def test_options_are_checked(tmp_path: Path) -> None:
    step = JsonSchema(schemas="s", schema="lower(eid) || '.json'")
    given = pa.schema([("value", pa.string()), ("eid", pa.string())])
    assert step.output(given).names == ["value", "eid", "errors"]
    assert {"value", "eid"} <= (step.uses(frozenset({"errors"})) or set())
    with pytest.raises(ProjectError) as caught:
        step.bound(Around(tmp_path))
    assert caught.value.code == "missing-file"
    with pytest.raises(ProjectError) as caught:
        JsonSchema(schemas="s", schema="lower(eidd)").output(given)
    assert caught.value.code == "unknown-column"
    for bad in ("lower(", "(SELECT max(x) FROM other)"):
        with pytest.raises(ValidationError):
            JsonSchema(schemas="s", schema=bad)


@pytest.mark.spark
def test_every_row_comes_out_with_what_is_wrong(tmp_path: Path, spark: Any) -> None:
    write(tmp_path / "s", order={"type": "object", "required": ["id"]})
    step = JsonSchema(schemas="s", schema="lower(kind) || '.json' -- its kind", missing="no such kind", max_bytes=1000)
    texts = ['{"id":1}', "{}", "{}", "{}", "nonsense", None, '{"id":"' + "x" * 1000 + '"}', "[" * 900]
    kinds = ["ORDER", "ORDER", "BILL", None, "ORDER", "ORDER", "ORDER", "ORDER"]
    rows = [{"value": text, "kind": kind, "errors": "old"} for text, kind in zip(texts, kinds, strict=True)]
    made = Around(tmp_path).run(spark, step, rows, "value string, kind string, errors string")
    assert [row["value"] for row in made] == texts
    found = [row["errors"] and [tuple(error.values()) for error in row["errors"]] for row in made]
    assert found == [
        None,
        [("required", "", '"id" is a required property')],
        [("schema", "", "no such kind")],
        [("schema", "", "no such kind")],
        [("json", "", "JSON is malformed: invalid character (byte 4)")],
        [("json", "", "there is no text")],
        [("size", "", "it has 1,009 bytes")],
        [("json", "", "Input data was truncated")],
    ]  # fmt: skip
