from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.core.errors import ProjectError
from headrace.project.variables import Secrets, Variables
from headrace.project.yaml_tree import parse_tree


def fill(text: str, tmp_path: Path, **options: Any) -> tuple[dict[str, Any], list[ProjectError], Secrets]:
    secrets, errors = Secrets(), list[ProjectError]()
    declared, files = options.get("declared", {}), options.get("files", {})
    variables = Variables(declared, files, tmp_path, secrets, options.get("environment", {}))
    return variables.fill(parse_tree(text, "f.yaml"), errors).data, errors, secrets


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${NAME}", "ann"),
        ("a-${NAME}-${NUMBER}", "a-ann-7"),
        ("${NO:-x}", "x"),
        ("${NO:-}", ""),
        ("${NAME:-x}", "ann"),
        ("${ENV}", "out"),
        ("${NUMBER}", 7),
        ("${LIST}", [1, 2]),
        ("on ${FLAG}", "on true"),
        ("$${NAME}", "${NAME}"),
        ("cost $5, $$6", "cost $5, $6"),
        ("regexp '^a$'", "regexp '^a$'"),
        ("${NOTHING:-x}", "x"),
        ("${a.b-c:-x}", "x"),
    ],
)
def test_references_are_filled_in(tmp_path: Path, text: str, expected: Any) -> None:
    declared = {"NAME": "ann", "NUMBER": 7, "LIST": [1, 2], "FLAG": True, "NOTHING": None}
    data, errors, _ = fill(f'a: ["{text}"]', tmp_path, declared=declared, environment={"ENV": "out", "NAME": "env"})
    assert (data["a"], errors) == ([expected], [])


def test_keys_are_left_alone(tmp_path: Path) -> None:
    assert fill("'${NAME}': 1", tmp_path)[0] == {"${NAME}": 1}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("${NO}", "unknown-variable"),
        ("${secret:NO}", "unknown-secret"),
        ("${}", "bad-reference"),
        ("${1x}", "bad-reference"),
        ("${open", "bad-reference"),
        ("${secret:}", "bad-reference"),
        ("${secret:FILE}", "secret-unreadable"),
    ],
)
def test_what_cannot_be_filled_in_has_its_place(tmp_path: Path, text: str, code: str) -> None:
    _, (error,), _ = fill(f"a:\n  b: '{text}'", tmp_path, files={"FILE": "no/such/file"})
    assert (error.code, str(error.where)) == (code, "f.yaml:2 (a.b)")
    assert error.hint


def test_secrets_come_from_files_or_the_environment_and_are_remembered(tmp_path: Path) -> None:
    (tmp_path / "pw").write_text("from-file\n")
    text = "a: '${secret:A}:${secret:B}'\nc: ${secret:C:-plain}"
    data, errors, secrets = fill(text, tmp_path, files={"A": "pw"}, environment={"B": "from-env"})
    assert data == {"a": "from-file:from-env", "c": "plain"}
    assert errors == []
    assert secrets.redact("x from-file from-env plain") == "x **** **** plain"


def test_a_secret_is_hidden_also_when_it_is_shown_with_escapes() -> None:
    secrets = Secrets({"a\nb", "a"})
    assert "b" not in secrets.redact(repr("a\nb"))
    secrets = Secrets({'p/w "é'})
    for shown in ('p/w "é', 'p/w \\"é', 'p/w \\"\\u00e9', "p%2Fw%20%22%C3%A9", "p/w%20%22%C3%A9", "p%2Fw+%22%C3%A9"):
        assert secrets.redact(f"at {shown}!") == "at ****!", shown


def test_variables_may_use_the_environment_and_secrets(loaded: Any, tmp_path: Path) -> None:
    (tmp_path / "pw").write_text("hunter2")
    text = "project: a\nvariables: {dir: '${HOME}/x', pw: '${secret:pw}'}\nsecrets: {pw: pw}\nstate: '${dir}/${pw}'"
    project = loaded(text, environment={"HOME": "s3a://h"})
    assert project.spec.state == "s3a://h/x/hunter2"
    assert "hunter2" in project.secrets.values
