from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError
from tests.processors.steps import Around

from headrace.core.errors import ProjectError
from headrace.processors.filter_invalid import FilterInvalid

COLUMNS = "id bigint, who struct<name: string>, amount bigint"


def test_rules_are_checked() -> None:
    given = pa.schema([("id", pa.int64()), ("amount", pa.int64())])
    assert FilterInvalid(required=["id"], where="amount > 0").output(given) == given
    assert FilterInvalid(required=["id"]).uses(frozenset({"x"})) == {"x", "id"}
    for step in (FilterInvalid(required=["idd"]), FilterInvalid(where="amout > 0")):
        with pytest.raises(ProjectError) as caught:
            step.output(given)
        assert caught.value.code == "unknown-column"
    with pytest.raises(ValidationError, match="required"):
        FilterInvalid()


@pytest.mark.spark
def test_what_breaks_a_rule_becomes_a_dead_letter(tmp_path: Path, spark: Any) -> None:
    around = Around(tmp_path)
    rows = [
        {"id": 1, "who": {"name": "a"}, "amount": 5},
        {"id": 2, "who": {"name": None}, "amount": 5},
        {"id": 3, "who": None, "amount": 5},
        {"id": 4, "who": {"name": "a"}, "amount": None},
        {"id": 5, "who": {"name": "a"}, "amount": -1},
    ]
    step = FilterInvalid(required=["who.name"], where="amount > 0")
    assert [row["id"] for row in around.run(spark, step, rows, COLUMNS)] == [1]
    letters = around.letters()
    assert sorted(letter["reason"] for letter in letters) == ["condition-not-met"] * 2 + ["missing-value"] * 2
    assert {letter["detail"] for letter in letters} == {"not true: amount > 0", "who.name is null"}
    assert all(b'"id"' in letter["value"] for letter in letters)
    skipping = Around(tmp_path / "other")
    skipping.root.mkdir()
    skip = FilterInvalid(where="amount > 0", invalid="skip")
    assert len(skipping.run(spark, skip, rows, COLUMNS)) == 3
    assert [letter["value"] for letter in skipping.letters()] == [None, None]
    with pytest.raises(Exception, match=r"error\[invalid-row\]"):
        around.run(spark, FilterInvalid(required=["amount"], invalid="fail"), rows, COLUMNS)
