from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.core.errors import ProjectError
from headrace.processors.clear import Clear

GIVEN = pa.schema(
    [("name", pa.string()), ("at", pa.timestamp("us", "UTC")), ("who", pa.struct([("phone", pa.string())]))]
)


def test_columns_and_types_stay() -> None:
    assert Clear(columns=["name", "at", "who.phone"]).output(GIVEN) == GIVEN
    assert Clear(columns=["name"], to="empty").output(pa.schema([("name", pa.null())])).names == ["name"]


@pytest.mark.parametrize("column", ["at", "who"])
def test_what_is_never_empty_is_refused(column: str) -> None:
    with pytest.raises(ProjectError) as caught:
        Clear(columns=[column], to="empty").output(GIVEN)
    assert caught.value.code == "step-type"
