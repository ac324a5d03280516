from __future__ import annotations

import pyarrow as pa
import pytest
from pydantic import ValidationError

from headrace.core.errors import ProjectError
from headrace.processors.column import ColumnStep

GIVEN = pa.schema([("id", pa.int64()), ("name", pa.string()), ("driver", pa.struct([("name", pa.string())]))])


@pytest.mark.parametrize(
    ("columns", "keep", "names"),
    [
        ({"booking": "id", "who": "driver.name"}, "all", ["id", "name", "driver", "booking", "who"]),
        ({"booking": "id"}, "others", ["name", "driver", "booking"]),
        ({"name": "driver.name"}, "all", ["id", "name", "driver"]),
        ({"booking": "id"}, "none", ["booking"]),
        ({"booking": "id", "*": "*"}, "none", ["booking", "id", "name", "driver"]),
        ({"*": "*"}, "all", ["id", "name", "driver"]),
        ({"id": "name", "name": "id"}, "others", ["id", "name", "driver"]),
    ],
)
def test_what_comes_out(columns: dict[str, str], keep: str, names: list[str]) -> None:
    assert ColumnStep(columns=columns, keep=keep).output(GIVEN).names == names  # type: ignore[arg-type]


def test_types_follow_and_mistakes_are_told() -> None:
    assert ColumnStep(columns={"who": "driver.name"}).output(GIVEN).field("who").type == pa.string()
    for old in ("drivers.name", "driver.nme"):
        with pytest.raises(ProjectError) as caught:
            ColumnStep(columns={"who": old}).output(GIVEN)
        assert caught.value.code == "unknown-column"
    with pytest.raises(ValidationError, match='"\\*": "\\*"'):
        ColumnStep(columns={"all": "*"})


@pytest.mark.parametrize(
    ("keep", "wanted", "used"),
    [
        ("all", {"a", "who"}, {"a", "driver", "driver.name"}),
        ("all", {"a"}, {"a"}),
        ("none", None, {"driver", "driver.name"}),
        ("all", None, None),
    ],
)
def test_only_what_is_used_is_read(keep: str, wanted: set[str] | None, used: set[str] | None) -> None:
    step = ColumnStep(columns={"who": "driver.name"}, keep=keep)  # type: ignore[arg-type]
    assert step.uses(None if wanted is None else frozenset(wanted)) == used
