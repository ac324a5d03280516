from __future__ import annotations

import pyarrow as pa
import pytest
from pydantic import ValidationError

from headrace.core.errors import ProjectError
from headrace.processors.filter import Filter

GIVEN = pa.schema([("amount", pa.int64()), ("status", pa.string())])


def test_its_columns_are_read() -> None:
    step = Filter(where="Amount > 0 -- or not")
    assert step.output(GIVEN) == GIVEN
    assert step.uses(frozenset({"status"})) >= {"amount", "status"}  # type: ignore[operator]


def test_unknown_columns_are_told() -> None:
    with pytest.raises(ProjectError) as caught:
        Filter(where="ammount > 0").output(GIVEN)
    assert caught.value.code == "unknown-column"
    assert "amount" in (caught.value.hint or "")


@pytest.mark.parametrize("where", ["amount >", "amount > (SELECT 1 FROM rows)", "a) UNION SELECT * FROM (x"])
def test_what_is_no_condition_is_refused(where: str) -> None:
    with pytest.raises(ValidationError):
        Filter(where=where)
