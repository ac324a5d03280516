"""Delta tables without Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from headrace.core.context import Context
from headrace.core.errors import ProjectError
from headrace.systems.delta import CHANGE_FEED, columns_of, keeps_change_feed, open_table


def test_a_table_of_the_project(tmp_path: Path) -> None:
    context = Context(tmp_path, "state")
    with pytest.raises(ProjectError) as caught:
        open_table("lake/orders", context)
    assert caught.value.code == "lake-missing"
    rows = pa.table({"id": pa.array([1], pa.int64()), "name": ["a"]})
    write_deltalake(str(tmp_path / "lake" / "orders"), rows, configuration={CHANGE_FEED: "true"})
    table = open_table("lake/orders", context)
    assert columns_of(table) == pa.schema([("id", pa.int64()), ("name", pa.string())])
    assert keeps_change_feed(table)
