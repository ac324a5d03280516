from __future__ import annotations

from headrace.core.errors import Exit, Origin, ProjectError, ProjectErrors, did_you_mean, nearest


def test_an_error_shows_its_code_place_and_hint() -> None:
    error = ProjectError("some-code", "what", where=Origin("f.yaml", 3, "a.b"), hint="do this")
    assert str(error) == "error[some-code]: what\n  --> f.yaml:3 (a.b)\n  hint: do this"
    assert str(ProjectError("some-code", "what")) == "error[some-code]: what"


def test_an_error_keeps_the_first_place_it_gets() -> None:
    error = ProjectError("some-code", "what").at(Origin("a", 1)).at(Origin("b", 2))
    assert str(error.where) == "a:1"


def test_programs_get_the_same_as_people() -> None:
    error = ProjectError("some-code", "what", where=Origin("f", 3, "a"), hint="h", exit_code=Exit.CONFLICT)
    where = {"file": "f", "line": 3, "path": "a"}
    assert error.to_json() == {"code": "some-code", "message": "what", "where": where, "hint": "h", "exit": 5}
    assert ProjectError("c", "m").to_json()["where"] is None


def test_several_errors_are_one_that_shows_all() -> None:
    errors = ProjectErrors([ProjectError("a", "one", exit_code=Exit.USAGE), ProjectError("b", "two")])
    assert (errors.code, errors.exit_code, len(errors.errors)) == ("a", Exit.USAGE, 2)
    assert str(errors) == "error[a]: one\nerror[b]: two"


def test_the_nearest_name_is_found_whatever_its_case() -> None:
    assert nearest("AMMOUNT", ["amount", "id"]) == "amount"
    assert nearest("xyz", ["amount"]) is None
    assert did_you_mean("topics", ["topic", "type"], "keys") == "did you mean 'topic'? keys: topic, type"
    assert did_you_mean("x", [], "keys") == "keys: none"
