from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.processors.constant import Constant

STEP = Constant(values={"country": "ID", "version": 2, "share": 0.5, "live": True, "note": None})


def test_columns_and_their_types() -> None:
    made = STEP.output(pa.schema([("id", pa.int64()), ("version", pa.string())]))
    assert made == pa.schema(
        [
            ("id", pa.int64()),
            ("version", pa.int64()),
            ("country", pa.string()),
            ("share", pa.float64()),
            ("live", pa.bool_()),
            ("note", pa.string()),
        ]
    )


@pytest.mark.parametrize(("wanted", "used"), [({"id", "country"}, {"id"}), ({"live"}, set()), (None, None)])
def test_only_what_is_not_made_here_is_read(wanted: set[str] | None, used: set[str] | None) -> None:
    assert STEP.uses(None if wanted is None else frozenset(wanted)) == used
