"""The catalogue: nothing that is generated from it is out of date, and no column of OLAP can be silently empty."""

from __future__ import annotations

import csv
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from tests.apps.telemetry.application import APP, FIXTURES

# what upstream's tables read and nobody writes, and what is read instead
CORRECTED = {
    "user_grade_list": "$.userdata.grade[*]",
    "user_language_list": "$.userdata.language[*]",
    "user_subject_list": "$.userdata.subject[*]",
}
# what upstream's specs name without a path; here it is read as in the table
FOUND = {"eid", "user_declared_state", "device_loc_district"}
DRUID = {"double": "double", "long": "long", "string": "string", "strings": "string(multi-value ok)"}


def module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("telemetry_catalogue", APP / "catalogue.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


CATALOGUE = module()
HELD = CATALOGUE.load()
UPSTREAM = list(csv.DictReader((FIXTURES / "druid-dimensions.tsv").open(encoding="utf-8"), delimiter="\t"))


def test_what_is_generated_is_up_to_date() -> None:
    assert CATALOGUE.stale() == []


def test_the_command_says_what_is_out_of_date(tmp_path: Path) -> None:
    for name in ("catalogue.py", "catalogue.yaml"):
        (tmp_path / name).write_text((APP / name).read_text(encoding="utf-8"), encoding="utf-8")
    checked = subprocess.run(
        [sys.executable, tmp_path / "catalogue.py", "--check"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 1
    assert "out of date: druid/summary-events.json" in checked.stderr


def test_every_dimension_of_upstream_is_a_column() -> None:
    columns = {one.druid: one.columns for one in HELD.datasources.values()}
    for druid, rollup in HELD.rollups.items():
        readable = HELD.readable(rollup)
        columns[druid] = {name: readable[name] for name in rollup.dimensions}
        listed = [row["dimension"] for row in UPSTREAM if row["datasource"] == druid]
        assert rollup.dimensions == listed, druid
    assert {row["datasource"] for row in UPSTREAM} == set(columns)
    for row in UPSTREAM:
        name, path = row["dimension"], row["jsonpath"]
        column = columns[row["datasource"]][name]
        if path == "(transform/root)":
            assert column.cdata or name in FOUND, name
        elif path == "(root)":
            assert column.names == (name,)
        else:
            assert column.path == CORRECTED.get(name, path), name
        if column.type != "strings":
            assert row["type"] == DRUID[column.type]


def test_what_upstream_reads_and_nobody_writes_is_found() -> None:
    """The gaps of upstream are gaps here too, if its paths are taken."""
    given = yaml.safe_load((APP / "catalogue.yaml").read_text(encoding="utf-8"))
    paths = {row["dimension"]: row["jsonpath"] for row in UPSTREAM if row["spec"] == "raw_telemetry_events"}
    given["datasources"]["telemetry_events_syncts"]["columns"]["user_grade_list"] = paths["user_grade_list"]
    with pytest.raises(ValidationError, match="user_grade_list reads a path that denormalisation does not write"):
        CATALOGUE.Catalogue.model_validate(given)
    del given["blocks"]["device"]["fields"]["uaspec"]
    given["datasources"]["telemetry_events_syncts"]["columns"]["user_grade_list"] = CORRECTED["user_grade_list"]
    with pytest.raises(ValidationError, match="device_uaspec_agent"):
        CATALOGUE.Catalogue.model_validate(given)


@pytest.mark.parametrize("path", ["context.did", "$.a[*", "$[*].a", "$.a b"])
def test_paths_that_are_none_are_refused(path: str) -> None:
    with pytest.raises(ValidationError):
        CATALOGUE.Column(path=path)


def test_denormalisation_keeps_what_the_catalogue_says() -> None:
    flows = yaml.safe_load((APP / "flows" / "lookups.yaml").read_text(encoding="utf-8"))
    redis = flows["profiles"]["kafka"]["flows"]
    for found in (flows["flows"]["denormalise_found"], redis["denormalise_found"], redis["denormalise_summary_found"]):
        kept = {step["column"]: set(step["fields"]) for step in found["after"] if step["type"] == "reshape"}
        assert kept == {f"{name}_value": set(block.fields) for name, block in HELD.blocks.items() if block.lookup}


@pytest.mark.parametrize("source", HELD.datasources.values(), ids=HELD.datasources.keys())
def test_druid_finds_all_it_ingests(source: Any) -> None:
    spec = json.loads((APP / "druid" / f"{source.druid}.json").read_text(encoding="utf-8"))
    assert (spec["type"], spec["spec"]["ioConfig"]["topic"]) == ("kafka", f"ENV.{source.topic}")
    schema = spec["spec"]["dataSchema"]
    dimensions = [one["name"] for one in schema["dimensionsSpec"]["dimensions"]]
    found = [one["name"] for one in spec["spec"]["ioConfig"]["inputFormat"]["flattenSpec"]["fields"]]
    assert len(set(dimensions)) == len(dimensions)
    assert {*dimensions, schema["timestampSpec"]["column"]} == set(found)
    assert len(set(found)) == len(found)
    assert {one["fieldName"] for one in schema["metricsSpec"] if "fieldName" in one} <= set(found)
    assert schema["granularitySpec"]["rollup"] == source.rollup


@pytest.mark.parametrize("name", HELD.rollups)
def test_druid_finds_all_that_a_rollup_needs(name: str) -> None:
    rollup = HELD.rollups[name]
    spec = json.loads((APP / "druid" / f"{name}.json").read_text(encoding="utf-8"))["spec"]
    assert spec["ioConfig"]["topic"] == f"ENV.{HELD.datasources[rollup.of].topic}"
    schema = spec["dataSchema"]
    found = [one["name"] for one in spec["ioConfig"]["inputFormat"]["flattenSpec"]["fields"]]
    assert len(set(found)) == len(found)
    assert [one["name"] for one in schema["dimensionsSpec"]["dimensions"]] == rollup.dimensions
    needed = {*rollup.dimensions, *(one["fieldName"] for one in schema["metricsSpec"] if "fieldName" in one)}
    assert set(found) >= {"syncts", *needed}
    assert schema["granularitySpec"]["queryGranularity"] == rollup.granularity.upper()
    assert schema["granularitySpec"]["rollup"]


def test_rollups_choose_events_and_count_distinct_values() -> None:
    spec = CATALOGUE.rollup_spec(HELD, "tpd-hourly-rollup-syncts", HELD.rollups["tpd-hourly-rollup-syncts"])
    schema = spec["spec"]["dataSchema"]
    assert schema["metricsSpec"][1] == {"type": "HLLSketchBuild", "name": "unique_devices", "fieldName": "context_did"}
    expression = "eid == 'START' || !like(nvl(context_pdata_pid, ''), '%contentplayer%')"
    assert schema["transformSpec"]["filter"] == {"type": "expression", "expression": expression}
    read = {one["name"] for one in spec["spec"]["ioConfig"]["inputFormat"]["flattenSpec"]["fields"]}
    assert read >= {"context_pdata_pid", "first_time_user", "actor_id", "context_did"}


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("of", "telemetry_event", "is not a table"),
        ("dimensions", ["eid", "edata_tipe"], "names 'edata_tipe'"),
        ("where", "edi == 'AUDIT'", "names 'edi'"),
        ("metrics", {"total": {"type": "double", "of": "edata_durration"}}, "names 'edata_durration'"),
        ("columns", {"user_lists": "$.userdata.gradelist"}, "user_lists reads a path that denormalisation does not"),
    ],
)
def test_rollups_name_what_there_is(key: str, value: Any, told: str) -> None:
    given = yaml.safe_load((APP / "catalogue.yaml").read_text(encoding="utf-8"))
    given["rollups"]["audit-rollup-syncts"][key] = value
    with pytest.raises(ValidationError, match=told):
        CATALOGUE.Catalogue.model_validate(given)


def test_the_metrics_of_summaries() -> None:
    spec = CATALOGUE.druid_spec(HELD.datasources["summary_events"])
    assert spec["spec"]["dataSchema"]["metricsSpec"] == [
        {"type": "longSum", "name": "total_interactions", "fieldName": "edata_interaction_count"},
        {"type": "doubleSum", "name": "total_time_spent", "fieldName": "edata_time_spent"},
    ]
