"""`headrace schema`: what the loader takes, the schema takes; typing errors are found by both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from headrace.project.json_schema import project_schema

Run = Callable[..., Any]
KAFKA = {"type": "kafka", "brokers": ["127.0.0.1:9"], "topic": "orders"}


@pytest.fixture(scope="module")
def validator() -> Any:
    return jsonschema_rs.validator_for(project_schema())


def _project(**sections: Any) -> dict[str, Any]:
    return {"project": "shop", **sections}


def _stream(**keys: Any) -> dict[str, Any]:
    return _project(streams={"orders": {"source": KAFKA, "format": "json", **keys}})


def _flow(**keys: Any) -> dict[str, Any]:
    return _project(flows={"big": {"sql": "SELECT 1", **keys}})


GOOD = {
    "nothing but a name": _project(),
    "a kind by its bare name": _stream(),
    "a kind with options": _stream(format={"type": "json", "columns": "id bigint"}),
    "event time as a column": _stream(event_time="at"),
    "event time with options": _stream(event_time={"column": "at", "watermark": "5s"}),
    "a choice from a variable": _stream(on_error="${ON_ERROR:-skip}"),
    "a number from a variable": _flow(max_records="${MAX:-10}"),
    "a list from a variable": _stream(source=KAFKA | {"brokers": "${BROKERS}"}),
    "sinks by name": _flow(sinks=["archive", {"type": "kafka", "brokers": ["b:9"], "topic": "t", "format": "json"}]),
    "one sink": _flow(sinks="archive"),
    "a query in a file": _project(flows={"big": {"sql_file": "sql/big.sql"}}),
    "settings that YAML reads as numbers": _flow(spark={"spark.sql.shuffle.partitions": 4, "x": True}),
    "a profile": _project(profiles={"test": {"streams": {"orders": {"on_error": "fail"}}}}),
}
BAD = {
    "no name": {},
    "an unknown section": _project(strems={}),
    "an unknown key": _stream(formatt="json"),
    "an unknown type": _stream(source={"type": "kafak"}),
    "no type": _stream(source={"brokers": ["b:9"], "topic": "t"}),
    "an unknown option of a kind": _stream(source=KAFKA | {"topik": "t"}),
    "a kind that needs options by its bare name": _stream(source="kafka"),
    "a wrong choice": _stream(on_error="explode"),
    "a wrong number": _flow(max_records=0),
    "no query": _project(flows={"big": {}}),
    "two queries": _flow(sql_file="a.sql"),
    "a name with a capital": _project(streams={"Orders": {"source": KAFKA}}),
    "an unknown section in a profile": _project(profiles={"test": {"strems": {}}}),
}


@pytest.mark.parametrize("document", GOOD.values(), ids=GOOD.keys())
def test_accepts(document: dict[str, Any], validator: Any) -> None:
    validator.validate(document)


@pytest.mark.parametrize("document", BAD.values(), ids=BAD.keys())
def test_refuses(document: dict[str, Any], validator: Any) -> None:
    assert not validator.is_valid(document)


def test_every_place_keeps_its_description() -> None:
    schema = project_schema()
    flow = schema["$defs"]["FlowSpec"]["properties"]
    assert all("description" in place for place in flow.values())
    assert "$id" not in schema


def test_the_command_prints_it(headrace: Run, project: Path, validator: Any) -> None:
    ran = headrace("schema")
    assert (ran.code, ran.err) == (0, "")
    assert ran.data == project_schema()
    assert headrace("schema", "--json").out == ran.out
    validator.validate(yaml.safe_load((project / "headrace.yaml").read_text()))
