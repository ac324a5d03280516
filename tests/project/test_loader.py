from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.core.errors import Exit, ProjectError
from headrace.project.loader import load
from headrace.project.tables import groups

STREAM = "{source: {type: kafka, brokers: ['a:1'], topic: t}, format: json}"


def test_a_folder_without_a_project_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ProjectError) as caught:
        load(tmp_path)
    assert (caught.value.code, caught.value.exit_code) == ("no-project", Exit.NOT_FOUND)
    assert "headrace init" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("written", "line", "offset", "expected"),
    [
        ("sql: SELECT x FROM y", 1, 7, 5),
        ("sql: |\n      SELECT\n        x\n      FROM y", 2, 9, 7),
        ("sql: |\n\n      SELECT\n        x", 3, 10, 8),
        ("sql: |-  # why\n      SELECT\n        x", 2, 9, 7),
        ("sql: >\n      SELECT\n      x\n      FROM y", 1, 7, 7),
        ("sql: >-\n      SELECT\n\n      x\n      FROM y", 2, 7, 8),
        ("sql: SELECT\n      x\n      FROM y", 1, 7, 6),
        ('sql: "SELECT\n      x\n      FROM y"', 1, 7, 6),
        ("sql:\n      SELECT\n      x", 1, 7, 7),
    ],
)
def test_a_place_in_sql_is_found_in_every_way_yaml_writes_text(
    loaded: Any, written: str, line: int, offset: int, expected: int
) -> None:
    project = loaded(f"project: a\n\nflows:\n  f:\n    {written}\n")
    assert project.sql_of("f")[offset] == "x"
    assert project.sql_origin("f", line, offset).line == expected


def test_a_place_in_a_sql_file_is_in_that_file(loaded: Any) -> None:
    project = loaded("project: a\nflows: {f: {sql_file: sql/f.sql}}", {"sql/f.sql": "SELECT\n  x"})
    assert project.sql_of("f") == "SELECT\n  x"
    assert str(project.sql_origin("f", 2)) == "sql/f.sql:2 (flows.f)"
    (project.root / "sql" / "f.sql").write_text("\ufeffSELECT 1")
    assert project.sql_of("f") == "SELECT 1"


def test_included_files_keep_their_places(loaded: Any) -> None:
    files = {"flows/f.yaml": "# one\nflows:\n  f:\n    sql: |\n      SELECT\n        x\n"}
    project = loaded("project: a\ninclude: ['flows/*.yaml', '*.yaml']\n", files)
    assert str(project.sql_origin("f", 2, 9)) == "flows/f.yaml:6 (flows.f.sql, line 2)"


def test_two_files_may_not_say_different_things(refused: Any) -> None:
    files = {"b.yaml": "project: b\nspark: {memory: 3g}\ninclude: []"}
    errors = refused("project: a\ninclude: [b.yaml]\nspark: {memory: 2g}", files)
    assert [(e.code, str(e.where)) for e in errors] == [
        ("duplicate-key", "b.yaml:1 (project)"),
        ("duplicate-key", "b.yaml:2 (spark.memory)"),
        ("nested-include", "b.yaml:3 (include)"),
    ]


@pytest.mark.parametrize(
    ("pattern", "code"),
    [
        ("no.yaml", "missing-file"),
        (".", "missing-file"),
        ("**a", "missing-file"),
        ("/etc/x", "bad-value"),
        ("${X}", "bad-value"),
    ],
)
def test_an_include_must_match_a_file_of_the_project(refused: Any, pattern: str, code: str) -> None:
    errors = refused(f"project: a\ninclude: ['{pattern}']", environment={"X": "y"})
    assert (errors[0].code, errors[0].where.line) == (code, 2)


def test_broken_included_files_are_reported_with_the_rest(refused: Any) -> None:
    errors = refused("project: a\nx: 1\ninclude: [b.yaml]", {"b.yaml": "a: ["})
    assert {e.code for e in errors} == {"unknown-key", "bad-yaml"}


def test_a_profile_is_laid_over_and_keeps_its_places(loaded: Any, refused: Any) -> None:
    text = "project: a\nspark: {{memory: 2g}}\nprofiles:\n  dev:\n    spark:\n      memory: {}\n"
    assert loaded(text.format("4g"), profile="dev").spec.spark.memory == "4g"
    assert loaded(text.format("4g")).spec.spark.memory == "2g"
    (error,) = refused(text.format("lots"), profile="dev")
    assert error.where.line == 6


def test_a_profile_can_replace_sql(loaded: Any) -> None:
    profile = "dev:\n    flows:\n      f:\n        sql: |\n          SELECT\n          x"
    text = f"project: a\nflows: {{f: {{sql: SELECT 1}}}}\nprofiles:\n  {profile}"
    assert loaded(text, profile="dev").sql_origin("f", 2, 7).line == 9


def test_profiles_are_checked_also_when_not_in_use(refused: Any) -> None:
    for profile in (None, "dev"):
        (error,) = refused("project: a\nprofiles:\n  dev:\n    flow: {}\n", profile=profile)
        assert (error.code, error.where.line) == ("unknown-key", 4)
    (unknown,) = refused("project: a\nprofiles: {dev: {}}", profile="dve")
    assert unknown.code == "unknown-profile"
    assert "'dev'?" in str(unknown.hint)


def test_a_variable_that_is_set_is_one_that_is_used(loaded: Any, refused: Any) -> None:
    text = "project: a\nvariables: {env: dev}\nflows: {f: {sql: 'SELECT ${env}, ${other:-1}'}}"
    assert loaded(text, overrides=["variables.env=prod", "variables.other=2"]).spec.flows["f"].sql == "SELECT prod, 2"
    (error,) = refused(text, overrides=["variables.evn=prod"])
    assert (error.code, error.where.file) == ("unknown-variable", "--set variables.evn")
    assert "did you mean 'env'?" in error.hint


def test_a_variable_is_one_of_its_choices(loaded: Any, refused: Any) -> None:
    text = (
        "project: a\nvariables: {mode: strict, on: true}\n"
        "choices: {mode: [strict, lenient], on: [true, false], no: [1]}\n"
        "flows: {f: {sql: 'SELECT ${mode}, ${on}, ${no:-1}'}}"
    )
    assert loaded(text, overrides=["variables.mode=lenient", "variables.on=false"]).spec.flows["f"].sql
    (error,) = refused(text, overrides=["variables.mode=lenientt"])
    assert (error.code, error.where.file) == ("bad-value", "--set variables.mode")
    assert "did you mean 'lenient'?" in error.hint
    assert [one.code for one in refused(text, overrides=["variables.on=yeah", "variables.no=2"])] == ["bad-value"] * 2


def test_overrides_win_and_name_themselves_in_errors(loaded: Any, refused: Any) -> None:
    project = loaded(
        "project: a\nspark: {memory: 2g}", overrides=["spark.memory=4g", 'spark.conf."spark.ui.port"=4040']
    )
    assert (project.spec.spark.memory, project.spec.spark.conf) == ("4g", {"spark.ui.port": "4040"})
    (error,) = refused("project: a", overrides=["spark.memory=lots"])
    assert str(error.where) == "--set spark.memory (spark.memory)"


@pytest.mark.parametrize("text", ["spark", "=1", "a..b=1", "spark.memory=[1", ".a=1"])
def test_a_malformed_override_is_a_usage_error(refused: Any, text: str) -> None:
    (error,) = refused("project: a", overrides=[text])
    assert (error.code, error.exit_code) == ("bad-override", Exit.USAGE)


def test_sql_of_an_override_has_the_override_as_its_place(loaded: Any) -> None:
    project = loaded("project: a\nflows: {f: {sql: SELECT 1}}", overrides=["flows.f.sql=SELECT x"])
    assert str(project.sql_origin("f", 1, 7)) == "--set flows.f.sql (flows.f.sql, line 1)"


def test_files_that_are_named_must_be_there_and_be_text(refused: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.sql").write_bytes(b"SELECT \xff")
    errors = refused("project: a\nflows:\n  f: {sql_file: no.sql}\n  g: {sql_file: bad.sql}\n")
    assert [(e.code, e.where.line) for e in errors] == [("missing-file", 3), ("file-unreadable", 4)]


def test_a_stream_and_a_flow_may_not_share_a_name(refused: Any) -> None:
    (error,) = refused(f"project: a\nstreams: {{b: {STREAM}}}\nflows: {{b: {{sql: SELECT 1}}}}")
    assert (error.code, error.where.line) == ("duplicate-name", 3)


def test_a_table_may_not_share_its_name_either(refused: Any) -> None:
    table = "{source: {type: push, columns: 'id int', key: [id]}}"
    tables = f"{{b: {table}, c: {table}}}"
    errors = refused(f"project: a\nstreams: {{b: {STREAM}}}\ntables: {tables}\nflows: {{c: {{sql: SELECT 1}}}}")
    assert [(error.code, error.where.line) for error in errors] == [("duplicate-name", 3), ("duplicate-name", 4)]


def test_the_key_of_a_table_is_what_its_source_says_or_its_options(loaded: Any) -> None:
    source = "source: {type: push, columns: 'id int, tags array<string>', key: [id]}"
    tables = f"{{a: {{{source}}}, b: {{{source}, key: [id]}}, c: {{{source}, key: [tags]}}}}"
    project = loaded(f"project: a\ntables: {tables}")
    found = project.spec.tables
    assert [found[name].shape(name, project.context).key for name in "ab"] == [("id",), ("id",)]
    with pytest.raises(ProjectError) as caught:
        found["c"].shape("c", project.context)
    assert caught.value.code == "table-key"
    assert {group: list(tables) for group, tables in groups(found).items()} == {"push": ["a", "b", "c"]}


def test_named_sinks_and_bare_kinds_may_stand_in_a_flow(loaded: Any) -> None:
    flows = "{f: {sql: SELECT 1, sinks: [main, console]}, g: {sql: SELECT 1, sinks: noop}}"
    found = loaded(f"project: a\nsinks: {{main: {{type: lake, path: x}}}}\nflows: {flows}").spec.flows
    assert [sink.kind() for sink in found["f"].sinks] == ["lake", "console"]
    assert [sink.kind() for sink in found["g"].sinks] == ["noop"]


def test_state_is_a_folder_of_the_project_unless_it_is_elsewhere(loaded: Any, tmp_path: Path) -> None:
    assert loaded("project: a").context.state == str(tmp_path / ".headrace")
    assert loaded("project: a\nstate: s3a://bucket/x").context.state == "s3a://bucket/x"


def test_included_files_add_to_one_profile(loaded: Any, refused: Any) -> None:
    first = "project: a\ninclude: [b.yaml]\nprofiles: {dev: {variables: {x: 1}}, none: {}}\n"
    project = loaded(
        first, {"b.yaml": "profiles: {dev: {variables: {y: 2}}, none: {spark: {memory: 2g}}}"}, profile="dev"
    )
    assert project.spec.variables == {"x": 1, "y": 2}
    (error,) = refused(first, {"b.yaml": "profiles:\n  dev:\n    variables: {x: 3}"})
    assert (error.code, str(error.where)) == ("duplicate-key", "b.yaml:3 (profiles.dev.variables.x)")
