"""A wrong rule is noticed: each of these bugs makes the property of views fail, with the cases of the default run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pytest
from tests.views.runs import explore

from headrace.core.errors import ProjectError
from headrace.core.tables import WEIGHT
from headrace.testing.views import ViewHarness
from headrace.views.algebra.operators import Selection
from headrace.views.algebra.sql_text import Restriction, column_list, select
from headrace.views.maintain import deltas, fused_aggregate, relations, sums
from headrace.views.maintain.sums import COUNT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Bug = Callable[[pytest.MonkeyPatch], None]
BUGS: dict[str, tuple[Bug, Sequence[str]]] = {}
"""By name, how it is planted, and shapes in which it must show."""


def bug(*shapes: str) -> Callable[[Bug], Bug]:
    def named(plant: Bug) -> Bug:
        BUGS[plant.__name__] = plant, shapes
        return plant

    return named


def only_inserts(columns: Sequence[str], text: str | None) -> str | None:
    return None if text is None else select([*column_list(columns), WEIGHT], text, f"WHERE {WEIGHT} > 0")


def without_nulls(text: str | None, within: Restriction | None) -> str | None:
    restriction = within and replace(within, matches=tuple(replace(key, nulls=False) for key in within.matches))
    return RESTRICT(text, restriction)


RESTRICT = relations.restrict


@bug("inner", "self", "of_join", "triangle")
def a_join_takes_all_inputs_as_they_are(patch: pytest.MonkeyPatch) -> None:
    right = deltas.join_delta
    patch.setattr(deltas, "join_delta", lambda op, delta, old, new, *few: right(op, delta, new, new, *few))


@bug("inner", "self", "of_join", "triangle")
def a_join_takes_all_inputs_as_they_were(patch: pytest.MonkeyPatch) -> None:
    right = deltas.join_delta
    patch.setattr(deltas, "join_delta", lambda op, delta, old, new, *few: right(op, delta, old, old, *few))


@bug("inner", "of_join", "comma", "three")
def a_join_forgets_that_its_last_input_changes(patch: pytest.MonkeyPatch) -> None:
    right = deltas.join_delta
    patch.setattr(
        deltas,
        "join_delta",
        lambda op, delta, *rest: right(op, [*delta[:-1], None], *rest) if any(delta[:-1]) else None,
    )


@bug("inner", "self", "of_join", "distinct_join")
def a_join_ignores_how_often_a_row_is_there(patch: pytest.MonkeyPatch) -> None:
    right = deltas.join_sides

    def wrong(*arguments: Any) -> str:
        return right(*arguments).replace(f"l.{WEIGHT} * r.{WEIGHT}", f"l.{WEIGHT}")

    patch.setattr(deltas, "join_sides", wrong)


@bug("inner", "of_join", "comma", "three")
def a_table_that_changed_is_read_as_it_was(patch: pytest.MonkeyPatch) -> None:
    right = ViewHarness._table_delta
    patch.setattr(ViewHarness, "_table_delta", lambda *given: replace(right(*given), version=0))


@bug("left", "right", "full", "left_missing", "of_left_join")
def an_outer_join_loses_the_row_without_a_match(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deltas, "_MATCHES", {**deltas._MATCHES, "left": "", "right": "", "full": ""})


@bug("left", "full", "semi", "anti", "in")
def a_match_never_takes_anything_back(patch: pytest.MonkeyPatch) -> None:
    right = deltas.match_delta
    patch.setattr(deltas, "match_delta", lambda op, old, new, types: right(op, (None, None), new, types))


@bug("left", "anti", "full", "not_exists")
def rows_with_a_null_to_match_are_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deltas, "unmatchable_delta", lambda *arguments: None)


@bug("extremes", "count_distinct", "sums_of_doubles", "top", "spread")
def a_touched_group_is_not_found_when_it_is_null(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(relations, "restrict", without_nulls)


@bug("extremes", "percentiles", "collect", "spread", "having_unseen")
def a_group_forgets_what_it_said(patch: pytest.MonkeyPatch) -> None:
    right = deltas.regroup_delta
    patch.setattr(deltas, "regroup_delta", lambda op, rows, before: right(op, rows, None))


@bug("extremes", "percentiles", "collect", "spread", "having_unseen")
def a_group_never_loses_a_row(patch: pytest.MonkeyPatch) -> None:
    right = deltas.regroup_delta
    patch.setattr(
        deltas,
        "regroup_delta",
        lambda op, rows, before: right(op, only_inserts(op.input.columns, rows) or rows, before),
    )


@bug("collect", "spread", "sums_of_doubles", "percentiles", "top")
def a_row_that_is_there_twice_counts_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        deltas, "unweighted", lambda text, columns: select(column_list(columns), deltas.consolidate(text, columns))
    )


@bug("sums", "global_linear", "having", "of_join", "filtered")
def sums_never_go_down(patch: pytest.MonkeyPatch) -> None:
    right = deltas.sum_terms
    patch.setattr(
        deltas, "sum_terms", lambda op, s, change: right(op, s, only_inserts(op.input.columns, change) or change)
    )


@bug("sums", "distinct", "having", "by_double", "union")
def a_group_never_goes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deltas, "group_exists", lambda op, which="": "true")


@bug("distinct", "union", "distinct_join", "in_groups")
def a_distinct_row_goes_with_its_first_copy(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deltas, "group_exists", lambda op, which="": f"`{COUNT}{which}` = 1" if op.keys else "true")


@bug("sums", "global_linear", "of_left_join", "sums_of_doubles")
def nulls_are_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sums, "_where", lambda call, added: added)


@bug("global_linear", "global", "nested_global", "scalar")
def nothing_counted_is_no_row(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deltas, "group_exists", lambda op, which="": f"`{COUNT}{which}` > 0")


@bug("having", "filtered", "having_unseen", "in_groups")
def a_row_that_no_longer_fits_stays(patch: pytest.MonkeyPatch) -> None:
    """The condition after a group is asked of what it says now, not of what it said."""
    right = relations.Relations._linear

    def wrong(self: Any, op: Any, inputs: Sequence[str | None]) -> str | None:
        if isinstance(op, Selection):
            inputs = [only_inserts(op.columns, inputs[0])]
        return right(self, op, inputs)

    patch.setattr(relations.Relations, "_linear", wrong)


@bug("having", "filtered", "sums", "of_join")
def every_group_has_a_row_of_the_result(patch: pytest.MonkeyPatch) -> None:
    """Where sums and result come from one query, what a condition says of a row is passed by."""
    right = fused_aggregate._apply_step
    patch.setattr(
        fused_aggregate, "_apply_step", lambda step, text: text if isinstance(step, Selection) else right(step, text)
    )


@bug("sums", "global_linear", "having", "of_join")
def rows_of_the_result_are_never_taken_back(patch: pytest.MonkeyPatch) -> None:
    right = fused_aggregate.FusedAggregate.rows
    patch.setattr(
        fused_aggregate.FusedAggregate,
        "rows",
        lambda *given: (made := right(*given)).filter(pc.greater(made[WEIGHT], 0)),
    )


@bug("top", "qualify", "lag", "limit", "rank")
def the_rows_of_a_partition_keep_their_places(patch: pytest.MonkeyPatch) -> None:
    right = deltas.ranking_delta
    patch.setattr(deltas, "ranking_delta", lambda op, rows, before: right(op, rows, None))


@bug("star", "union_all", "inner", "left", "top")
def changes_are_not_added_up(patch: pytest.MonkeyPatch) -> None:
    def wrong(text: str, columns: Sequence[str]) -> str:
        return select([*column_list(columns), WEIGHT], text)

    patch.setattr(deltas, "consolidate", wrong)


def is_noticed(spark: SparkSession, shape: str) -> bool:
    try:
        explore(spark, shape, examples=1, shrink=False)
    except (AssertionError, ProjectError):
        return True
    return False


@pytest.mark.spark
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_noticed(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    plant, shapes = BUGS[name]
    plant(monkeypatch)
    assert any(is_noticed(spark, shape) for shape in shapes), name
