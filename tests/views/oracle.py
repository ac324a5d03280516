"""Whether a view is right: after each batch it is what Spark's batch query gives, and its changes lead there."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pprint import pformat
from typing import TYPE_CHECKING, Any

from tests.views.generated_views import Case, Row

from headrace.core.errors import ProjectError
from headrace.testing import ViewHarness

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def plain(value: Any) -> Any:
    """A value that equals another one where SQL says so: NaN is NaN, -0.0 is 0.0; the order in a list is nobody's."""
    match value:
        case bool():
            return str(value)
        case float():
            return "NaN" if math.isnan(value) else value + 0.0
        case Decimal():
            return str(value)  # the scale is part of the type
        case datetime(tzinfo=None):
            return value.replace(tzinfo=UTC)
        case tuple():
            return tuple(sorted(map(plain, value), key=repr))
    return value


def plain_row(row: Iterable[Any]) -> Row:
    return tuple(map(plain, row))


def bag(rows: Iterable[Iterable[Any]]) -> Counter[Row]:
    return Counter(map(plain_row, rows))


def close(one: Any, other: Any) -> bool:
    """Equal, but for the last digits of a sum of doubles."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        return all(map(close, one, other))
    return bool(one == other)


def difference(found: Iterable[Row], wanted: Iterable[Row]) -> tuple[list[Row], list[Row]]:
    """What is too much, and what is missing."""
    have, want = bag(found), bag(wanted)
    extra, missing = list((have - want).elements()), list((want - have).elements())
    for row in list(extra):
        partner = next((other for other in missing if close(row, other)), None)
        if partner is not None:
            extra.remove(row)
            missing.remove(partner)
    return extra, missing


def followed(rows: Iterable[Row], changes: Iterable[tuple[Any, ...]]) -> Counter[Row]:
    """The rows after the changes; each row that a change takes away has to be there."""
    now = bag(rows)
    # all that goes goes first: a key may pass from one row to another within a batch
    for op, *images in changes:
        if op in ("U", "D"):
            gone = plain_row(images[0])
            assert now[gone] > 0, f"{op} of a row that is not there: {gone}"
            now[gone] -= 1
    for op, *images in changes:
        if op in ("U", "I"):
            now[plain_row(images[-1])] += 1
    return +now


def check_changes(harness: ViewHarness, before: Sequence[Row], now: Sequence[Row]) -> None:
    """The changes of the last batch lead from the rows before it to those now, and say each thing once."""
    changes = harness.changes()
    assert followed(before, changes) == bag(now), "the changes do not lead to the rows"
    places = [harness.view.columns.index(name) for name in harness.view.key]
    if places:
        said = Counter(plain_row(images[-1][place] for place in places) for _, *images in changes)
        assert all(times == 1 for times in said.values()), f"a key changes twice in one batch: {said.most_common(1)}"
    else:
        both = bag(c[1] for c in changes if c[0] == "I") & bag(c[1] for c in changes if c[0] == "D")
        assert not both, f"the same row goes and comes: {both}"


def check(spark: SparkSession, sql: str, case: Case, answer: str = "") -> None:
    """Run a query over a case, and compare after every batch. `answer`: the query for Spark, if it needs another."""
    specs = {table.name: table.spec for table in case.tables.values()}
    batches = case.changes()
    with ViewHarness(specs, sql, spark=spark) as harness:
        harness.sql = answer or sql
        before: list[Row] = []
        for number, changes in enumerate(batches):
            if number in case.restarts:
                harness.restart()
            try:
                harness.apply(changes)
                check_rows(harness)
                check_changes(harness, before, harness.rows())
            except (AssertionError, ProjectError) as problem:
                case_so_far = f"restarts {case.restarts}\nbatches {pformat(batches[: number + 1], width=160)}"
                raise AssertionError(f"{problem}\n{sql}\ntables {pformat(specs)}\n{case_so_far}") from problem
            before = harness.rows()


def check_rows(harness: ViewHarness) -> None:
    """The rows are those of the batch query."""
    extra, missing = difference(harness.rows(), harness.batch_rows())
    assert (extra, missing) == ([], []), f"too much {pformat(extra)}\nmissing {pformat(missing)}"
