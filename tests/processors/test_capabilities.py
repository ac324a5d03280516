"""What only some processors can do: each tier and capability behaves the same in all kinds that have it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.processors.steps import Around

from headrace.core.kinds import kinds
from headrace.core.processor import ArrowProcessor, KnowsValues, Processor, RunsSql, StatefulStep
from headrace.core.python_stage import Batches, PythonStage
from headrace.core.schema import from_ddl

SCHEMA = from_ddl("id string, at timestamp, value string, n int")
CAPABILITIES: dict[type, dict[str, dict[str, Any]]] = {
    StatefulStep: {
        "deduplicate": {"key": ["id"], "ttl": "1h"},
        "history": {"key": ["id"], "keep": "1d", "last": "1d"},
        "sessions": {"class": "steps.py:Visits", "key": ["id"], "time": "at", "gap": "1h", "wait": "1m"},
    },
    RunsSql: {
        "deduplicate": {"key": ["id"], "ttl": "1h", "when": "n > 0"},
        "filter": {"where": "n > 0"},
        "filter_invalid": {"where": "n > 0"},
        "json_schema": {"schemas": "schemas", "schema": "'a.json'"},
        "route": {"column": "topic", "routes": [{"when": "n > 0", "to": "a"}], "otherwise": "b"},
        "sql": {"sql": "SELECT n FROM rows"},
    },
    KnowsValues: {"route": {"column": "topic", "routes": [{"when": "n > 0", "to": "a"}], "otherwise": "b"}},
}


def cases(capability: type) -> list[Any]:
    return [pytest.param(kind, options, id=kind) for kind, options in CAPABILITIES[capability].items()]


def step(kind: str, options: dict[str, Any]) -> Any:
    return kinds("processors")[kind].model_validate({"type": kind, **options})


class Expanding(Around):
    """A project whose functions are written out in a way that can be recognised."""

    def written_out(self, sql: str) -> str:
        return f"{sql} /* written out */"


@pytest.fixture
def project(tmp_path: Path) -> Expanding:
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "a.json").write_text("{}")
    return Expanding(tmp_path)


def test_who_is_stateful() -> None:
    stateful = {name for name, kind in kinds("processors").items() if issubclass(kind, StatefulStep)}
    assert stateful == set(CAPABILITIES[StatefulStep])


@pytest.mark.parametrize(("capability", "member"), [(RunsSql, "statements"), (KnowsValues, "known_values")])
def test_who_has_it(capability: type, member: str) -> None:
    assert {name for name, kind in kinds("processors").items() if hasattr(kind, member)} == set(
        CAPABILITIES[capability]
    )
    for kind, options in CAPABILITIES[capability].items():
        assert isinstance(step(kind, options), capability)


@pytest.mark.parametrize(("kind", "options"), cases(StatefulStep))
def test_another_key_is_another_state(kind: str, options: dict[str, Any]) -> None:
    one, other = step(kind, options), step(kind, {**options, "key": ["n"]})
    assert one.state_name == kind
    assert not one.realtime
    assert json.dumps(one.state_options) == json.dumps(step(kind, options).state_options)
    assert json.dumps(one.state_options) != json.dumps(other.state_options)
    assert not (one.has_watermark and one.needs_one_batch)


@pytest.mark.parametrize(("kind", "options"), cases(RunsSql))
def test_what_runs_is_the_query_with_functions_written_out(
    kind: str, options: dict[str, Any], project: Expanding
) -> None:
    unbound = step(kind, options)
    assert unbound.statements == ()
    statements = unbound.bound(project).statements
    assert statements
    assert all(statement.endswith("/* written out */") for statement in statements)


@pytest.mark.parametrize(("kind", "options"), cases(KnowsValues))
def test_known_values_are_of_columns_that_come_out(kind: str, options: dict[str, Any]) -> None:
    made = step(kind, options)
    assert set(made.known_values) <= set(made.output(SCHEMA).names) - set(SCHEMA.names)
    assert all(made.known_values.values())


class Frame:
    """A DataFrame that only counts Python stages."""

    stages = 0

    def mapInArrow(self, function: Any, ddl: str) -> Frame:  # noqa: N802
        self.stages += 1
        return self


def same(batches: Batches) -> Batches:
    yield from batches


def opened(frame: Any, around: Around) -> PythonStage:
    return PythonStage(frame, SCHEMA).then(same, SCHEMA, around.at().letters)


ARROW = [name for name, kind in kinds("processors").items() if issubclass(kind, ArrowProcessor)]
NATIVE = [name for name, kind in kinds("processors").items() if getattr(kind, "extend", None) is Processor.extend]


@pytest.mark.parametrize("kind", ARROW)
def test_arrow_steps_share_the_stage(kind: str, project: Expanding, monkeypatch: pytest.MonkeyPatch) -> None:
    made: Any = kinds("processors")[kind].model_construct(fields={})
    monkeypatch.setattr(type(made), "work", lambda _self, _schema, _at: same)
    monkeypatch.setattr(type(made), "output", lambda _self, schema: schema)
    frame, at = Frame(), project.at()
    before = opened(frame, project)
    after = made.extend(before, at)
    assert (after.rows, after.chain, frame.stages) == (frame, (same, same), 0)
    assert after.letters == (*before.letters, at.letters)


@pytest.mark.parametrize("kind", NATIVE)
def test_native_steps_end_the_stage(kind: str, project: Expanding, monkeypatch: pytest.MonkeyPatch) -> None:
    made: Any = kinds("processors")[kind].model_construct()
    monkeypatch.setattr(type(made), "apply", lambda _self, rows, _at: rows)
    frame = Frame()
    after = made.extend(opened(frame, project), project.at())
    assert (after.rows, after.is_empty, frame.stages) == (frame, True, 1)


def test_every_kind_is_one_of_them() -> None:
    both = {*ARROW, *NATIVE, "deduplicate", "json_schema", "sql"}
    assert both == set(kinds("processors"))
