from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.core.errors import ProjectError
from headrace.processors.hash import Hash

GIVEN = pa.schema(
    [
        ("email", pa.string()),
        ("id", pa.int64()),
        ("zip", pa.int32()),
        ("small", pa.int16()),
        ("share", pa.float64()),
        ("who", pa.struct([("name", pa.string()), ("at", pa.timestamp("us", "UTC"))])),
    ]
)


def test_types_stay() -> None:
    assert Hash(columns=["email", "id", "zip", "who.name"]).output(GIVEN) == GIVEN
    unknown = pa.schema([("email", pa.null())])
    assert Hash(columns=["email"]).output(unknown) == unknown


@pytest.mark.parametrize(
    ("column", "code"),
    [("share", "step-type"), ("small", "step-type"), ("who", "step-type"), ("who.at", "step-type"),
     ("emial", "unknown-column"), ("who.nam", "unknown-column")],
)  # fmt: skip
def test_other_types_are_refused(column: str, code: str) -> None:
    with pytest.raises(ProjectError) as caught:
        Hash(columns=[column]).output(GIVEN)
    assert caught.value.code == code


def test_its_columns_are_always_read_so_that_none_can_be_overlooked() -> None:
    assert Hash(columns=["who.name"]).uses(frozenset({"id"})) == {"id", "who", "who.name"}
    assert Hash(columns=["id"]).uses(None) is None
