"""A flow on documents: batches taken apart, events validated, marked, written into and sent where they belong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.plan.explain import to_text
from headrace.plan.planner import make_plan
from headrace.project.loader import load
from headrace.testing.harness import ProjectHarness

PROJECT = """
project: documents
variables: {env: dev}
streams:
  batches:
    source: {type: generate, fields: {id: {sequence: 1}}}
    format: {type: raw, as: string}
flows:
  checked:
    before:
      batches: [{type: explode, path: events, position: n}]
    sql: >
      SELECT value, get_json_object(value, '$.eid') AS eid, get_json_object(value, '$.mid') AS mid, n FROM batches
    after:
      - {type: json_schema, schemas: schemas, schema: "lower(eid) || '.json'", draft: 4, missing: no such event}
      - {type: deduplicate, key: [mid], ttl: 1h, mark: repeat, when: errors IS NULL}
      - {type: sql, sql: "SELECT *, errors IS NULL AS valid, to_json(errors) AS why FROM rows"}
      - type: document
        set:
          flags.valid: {column: valid}
          flags.repeat: {column: repeat}
          metadata.errors: {json: why}
          type: {value: events}
        remove: [secret]
      - type: route
        routes:
          - {to: "${env}.good", when: valid AND NOT repeat}
          - {to: "${env}.repeats", when: repeat}
          - {to: "${env}.all"}
        otherwise: ${env}.failed
      - {type: sql, sql: "SELECT topic, mid AS key, value FROM rows"}
    sinks: [{type: files, path: out, contains: lines, folder_column: topic}]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "headrace.yaml").write_text(PROJECT)
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "log.json").write_text(json.dumps({"type": "object", "required": ["ets"]}))
    return tmp_path


def test_the_plan_tells_the_steps(project: Path) -> None:
    steps = [line.strip(" ▹") for line in to_text(make_plan(load(project)))]
    for told in (
        "explode value: events", "json_schema value by schemas",
        "deduplicate by mid for 1h when errors IS NULL, marked as repeat",
        "document value: set flags.valid, flags.repeat, metadata.errors, type; remove secret",
        "route by topic to dev.good, dev.repeats, dev.all, dev.failed",
    ):  # fmt: skip
        assert any(told in step for step in steps), told


@pytest.mark.spark
def test_every_event_is_accounted_for(project: Path, spark: Any) -> None:
    good = '{"eid":"LOG","mid":"a","ets":1.50,"secret":1,"big":12345678901234567890123}'
    bad, unknown = '{"eid":"LOG","mid":"b"}', '{"eid":"X","mid":"c","flags":{"old":1}}'
    with ProjectHarness(project, spark) as harness:
        texts = [f'{{"events":[{good},\n {bad},{unknown}]}}', '{"events":[]}', "nonsense"]
        harness.feed("batches", [{"value": text} for text in texts])
        harness.run("checked")
        harness.restart()
        harness.feed("batches", [{"value": f'{{"events":[{good}]}}'}])
        harness.run("checked")
        rows = sorted((row["topic"], row["value"]) for row in harness.rows("checked"))
        letters = harness.dead_letters("checked")
    kept = good.replace(',"secret":1', "")[:-1] + ',"flags":{"valid":true,"repeat":%s},"type":"events"}'
    required = '[{"keyword":"required","path":"","message":"\\"ets\\" is a required property"}]'
    missing = '[{"keyword":"schema","path":"","message":"no such event"}]'
    failed = [
        f'{{"eid":"LOG","mid":"b","flags":{{"valid":false}},"metadata":{{"errors":{required}}},"type":"events"}}',
        f'{{"eid":"X","mid":"c","flags":{{"old":1,"valid":false}},"metadata":{{"errors":{missing}}},"type":"events"}}',
    ]
    assert rows == sorted([
        ("dev.good", kept % "false"), ("dev.all", kept % "false"), ("dev.repeats", kept % "true"),
        ("dev.all", kept % "true"), *(("dev.all", text) for text in failed),
    ])  # fmt: skip
    assert [(letter["reason"], json.loads(letter["value"])["value"]) for letter in letters] == [
        ("not-json", "nonsense")
    ]
