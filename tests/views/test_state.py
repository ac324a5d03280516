"""What a view keeps: a batch begins where the one before it ended, and what nobody needs is removed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from headrace.core.errors import ProjectError
from headrace.views.maintain.state import IN_MEMORY_ROWS, ViewState


def rows(*values: int) -> pa.Table:
    return pa.table({"v": pa.array(values, pa.int64())})


def values(state: ViewState, relation: str = "r") -> list[int]:
    table = state.in_memory(relation)
    assert table is not None
    return sorted(table["v"].to_pylist())


def batch(state: ViewState, number: int, *added: int) -> None:
    state.begin(number, "query")
    state.add("r", rows(*added))
    state.commit(number, "query")


def test_a_batch_begins_where_the_one_before_it_ended(tmp_path: Path) -> None:
    state = ViewState(tmp_path)
    batch(state, 0, 1)
    batch(state, 1, 2)
    batch(state, 2, 3)
    assert values(state) == [1, 2, 3]
    again = ViewState(tmp_path)
    assert again.begin(2, "query")
    assert values(again) == [1, 2]


def test_a_batch_that_runs_again_puts_its_rows_there_once(tmp_path: Path) -> None:
    state = ViewState(tmp_path)
    batch(state, 0, 1)
    batch(state, 1, 2)
    batch(state, 1, 2)
    assert values(state) == [1, 2]


def test_what_was_added_and_not_committed_is_forgotten(tmp_path: Path) -> None:
    state = ViewState(tmp_path)
    batch(state, 0, 1)
    state.begin(1, "query")
    state.add("r", rows(7))
    batch(state, 1, 2)
    assert values(state) == [1, 2]
    again = ViewState(tmp_path)
    batch(again, 2, 3)
    assert values(again) == [1, 2, 3]
    assert len(list(tmp_path.glob("*.parquet"))) == 3, "the rows that were not committed are gone"


def test_chunks_and_manifests_stay_few(tmp_path: Path) -> None:
    state = ViewState(tmp_path)
    for number in range(70):
        batch(state, number, number)
        assert state.sizes()["r"].chunks <= 3 * 8
    assert values(state) == list(range(70))
    assert len(list(tmp_path.glob("*.json"))) == 2
    assert len(list(tmp_path.glob("*.parquet"))) <= 30
    again = ViewState(tmp_path)
    again.begin(70, "query")
    assert values(again) == list(range(70))


def test_deltas_that_outgrow_the_base_are_due(tmp_path: Path) -> None:
    state = ViewState(tmp_path)
    batch(state, 0, *range(IN_MEMORY_ROWS))
    state.begin(1, "query")
    state.add("r", rows(*range(IN_MEMORY_ROWS)))
    assert not state.needs_consolidation("r"), "it costs as much as it saves"
    state.add("r", rows(1))
    assert state.needs_consolidation("r")
    assert state.in_memory("r") is None, "more than is held in memory"
    state.consolidate("r", rows(*range(10)))
    state.commit(1, "query")
    assert values(state) == list(range(10))
    assert state.sizes()["r"].chunks == 1
    assert not state.needs_consolidation("r")


def test_what_is_added_again_and_again_to_a_few_rows_needs_consolidation(tmp_path: Path) -> None:
    state = ViewState(tmp_path)
    batch(state, 0, *range(10))
    state.begin(1, "query")
    state.add("r", rows(*range(2_000)))
    assert not state.needs_consolidation("r")
    state.add("r", rows(1))
    assert state.needs_consolidation("r")


def test_state_of_another_query_or_none_at_all_is_refused(tmp_path: Path) -> None:
    state = ViewState(tmp_path)
    batch(state, 0, 1)
    for number, query in ((1, "another"), (5, "query")):
        with pytest.raises(ProjectError) as refused:
            ViewState(tmp_path).begin(number, query)
        assert refused.value.code == "view-state"
