"""Which flows read what others write."""

from __future__ import annotations

from pathlib import Path

from headrace.plan.feeds import flow_feeds, flow_waits
from headrace.plan.planner import make_plan
from headrace.project.loader import load

FILES = """
project: chain
streams:
  raw: {source: {type: files, path: "{in,out}/raw", missing: wait}, format: {type: raw, as: string}}
  clean: {source: {type: files, path: "{in,out}/clean", missing: wait}, format: {type: raw, as: string}}
  all: {source: {type: files, path: "out/*", missing: wait}, format: {type: raw, as: string}}
flows:
  report: {sql: SELECT value FROM clean, sinks: [{type: files, path: reports, contains: json}]}
  make: {sql: SELECT value FROM raw, sinks: [{type: files, path: out/clean, contains: json}]}
  whole: {sql: SELECT value FROM all, sinks: [noop]}
  routed:
    sql: SELECT value FROM clean
    after: [{type: route, routes: [{to: raw, when: value > 'a'}], otherwise: other}]
    sinks: [{type: files, path: out, contains: lines, folder_column: topic}]
"""
KAFKA = """
project: chain
streams:
  raw: {source: {type: kafka, brokers: "b:1", topic: raw}, format: {type: raw, as: string}}
  clean: {source: {type: kafka, brokers: "b:1", topic: clean}, format: {type: raw, as: string}}
  elsewhere: {source: {type: kafka, brokers: "c:1", topic: clean}, format: {type: raw, as: string}}
  every: {source: {type: kafka, brokers: "b:1", pattern: ".*"}, format: {type: raw, as: string}}
flows:
  make:
    sql: SELECT CASE WHEN value > 'a' THEN 'clean' ELSE 'dirty' END AS t, value FROM raw
    sinks: [{type: kafka, brokers: "b:1", topic: bad, topic_column: t, format: raw}]
  unclear:
    sql: SELECT value AS t, value FROM clean
    sinks: [{type: kafka, brokers: "b:1", topic: bad, topic_column: t, format: raw}]
  read: {sql: SELECT value FROM clean, sinks: [noop]}
  other: {sql: SELECT value FROM elsewhere, sinks: [noop]}
  archive: {sql: SELECT value FROM every, sinks: [noop]}
"""


def links(folder: Path, text: str) -> dict[str, frozenset[str]]:
    (folder / "headrace.yaml").write_text(text)
    project = load(folder)
    return flow_feeds(make_plan(project), project.context)


def test_folders(tmp_path: Path) -> None:
    assert links(tmp_path, FILES) == {
        "make": {"routed"},
        "report": {"make"},
        "routed": {"make"},
        "whole": {"make", "routed"},
    }


def test_topics(tmp_path: Path) -> None:
    found = links(tmp_path, KAFKA)
    assert found == {
        "make": {"unclear"},
        "unclear": {"make", "unclear"},
        "read": {"make", "unclear"},
        "other": frozenset(),
        "archive": {"make", "unclear"},
    }
    assert flow_waits(found) == {
        "make": frozenset(),
        "unclear": frozenset(),
        "read": {"make", "unclear"},
        "other": frozenset(),
        "archive": {"make", "unclear"},
    }
