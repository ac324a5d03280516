"""Bytes in and out of a real flow are those of its records and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.engine.flows.flow import FlowStarter
from headrace.engine.observe.volumes import bytes_in, bytes_out
from headrace.engine.state.state import StateDir
from headrace.engine.supervise.runner import Runner
from headrace.plan.planner import make_plan
from headrace.project.loader import load

PROJECT = """
project: bytes
streams:
  lines: {source: {type: files, path: in}, format: {type: json, columns: id bigint}}
  made: {source: {type: generate, rate: 1, fields: {id: {sequence: "{}"}}}}
flows:
  weighed: {sql: SELECT id FROM lines WHERE id > 0, sinks: [{type: files, path: out, contains: json}, noop]}
  unweighed: {sql: SELECT id FROM made, sinks: [noop]}
"""


@pytest.mark.spark
def test_bytes_of_a_real_flow_are_those_of_its_records_and_files(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "headrace.yaml").write_text(PROJECT)
    (tmp_path / "in").mkdir()
    lines = [json.dumps({"id": number, "more": "x" * (number % 50)}) for number in range(-200, 300)]
    for number in range(3):
        (tmp_path / "in" / f"{number}.json").write_text("\n".join(lines) + "\n")
    project = load(tmp_path)
    plan = make_plan(project, ["weighed", "unweighed"])
    weighed, unweighed = plan.flows
    before = bytes_in(weighed)["lines"], sum(bytes_out(weighed).values())
    starter = FlowStarter(project, StateDir(Path(project.context.state)), spark, until_caught_up=True)
    (run,) = Runner(starter, make_plan(project, ["weighed"])).run()
    assert run.error is None
    assert bytes_in(weighed)["lines"] - before[0] == 3 * sum(len(line) for line in lines), "also of what SQL drops"
    written = sum(file.stat().st_size for file in (tmp_path / "out").rglob("*.json"))
    assert sum(bytes_out(weighed).values()) - before[1] == written > 0
    assert (bytes_in(unweighed), bytes_out(unweighed)) == ({}, {}), "unknown, not 0"
