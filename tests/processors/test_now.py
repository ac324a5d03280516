from __future__ import annotations

import pyarrow as pa

from headrace.core.schema import TIMESTAMP
from headrace.processors.now import Now


def test_a_timestamp_more() -> None:
    assert Now().output(pa.schema([("id", pa.int64())])).field("processed_at").type == TIMESTAMP
    assert Now(column="at").uses(frozenset({"at", "id"})) == {"id"}
    assert not Now.realtime
