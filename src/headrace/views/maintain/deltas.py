"""The delta rules: how a delta of an operator's inputs changes its result.

The join delta Δ(A⋈B) = ΔA⋈B + A⋈ΔB + ΔA⋈ΔB is `join_delta`, as one term per changed input: ΔA⋈(B+ΔB) + A⋈ΔB. Outer,
semi and anti joins are `match_delta`, aggregates `regroup_delta` and `aggregate_delta`, windows `ranking_delta`.

A rule takes SQL queries of weighted rows and returns one; None stands for no rows. Weighted rows add up, so a rule is
right if old result + delta = result of the new inputs. Linear operators need no rule: they apply to deltas as they do
to rows. `relations` decides which queries a rule gets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.core.schema import quoted
from headrace.core.tables import WEIGHT
from headrace.views.algebra.operators import ID, Aggregate, Join, Match, Ranked
from headrace.views.algebra.sql_text import (
    broadcast_hint,
    column_list,
    empty_rows,
    hash_join_hint,
    in_one_task,
    negate,
    select,
    union_all,
)
from headrace.views.maintain.batch_query import match_condition
from headrace.views.maintain.sums import COUNT, Sums

_MATCHES = {"left": "LEFT", "right": "RIGHT", "full": "FULL", "semi": "LEFT SEMI", "anti": "LEFT ANTI"}


def consolidate(query: str, columns: Sequence[str]) -> str:
    """Each distinct row once, with the sum of its weights; rows of weight 0 are dropped."""
    group = f"GROUP BY {', '.join(column_list(columns))} " if columns else ""
    total = f"sum({WEIGHT})"
    return select([*column_list(columns), f"{total} AS {WEIGHT}"], query, f"{group}HAVING {total} <> 0")


def unweighted(query: str, columns: Sequence[str]) -> str:
    """Each row as often as its weight says: the input of Spark's own aggregates and window functions."""
    repeated = f"LATERAL VIEW explode(array_repeat(0, CAST({WEIGHT} AS INT))) __copies AS __copy"
    return select(column_list(columns) or ["1 AS `__one`"], consolidate(query, columns), repeated)


def join_delta(
    join: Join,
    delta: Sequence[str | None],
    old: Sequence[str | None],
    new: Sequence[str | None],
    small: bool,
    one_task: bool,
) -> str | None:
    """The join delta: Δ(A⋈B) = ΔA⋈B_new + A_old⋈ΔB, which is ΔA⋈B + A⋈ΔB + ΔA⋈ΔB.

    One term for each changed input, joined with the old rows of the inputs before it and the new rows of those after.
    """
    terms = []
    for changed, input_delta in enumerate(delta):
        sides = [*old[:changed], input_delta, *new[changed + 1 :]]
        present = [side for side in sides if side is not None]
        if len(present) == len(sides):  # a join with an empty side is empty
            terms.append(join_sides(join, present, changed, small, one_task))
    return union_all(terms)


def join_sides(join: Join, sides: Sequence[str], first: int, small: bool, one_task: bool = False) -> str:
    """Joins the sides one after the other along the equal columns, starting with the small side `first`."""
    if one_task:
        sides = [in_one_task(side) for side in sides]
    query, joined_columns = sides[first], list(join.inputs[first].columns)
    remaining = [number for number in range(len(sides)) if number != first]
    while remaining:
        number = next(
            (n for n in remaining if _equal_conditions(join, joined_columns, join.inputs[n].columns)), remaining[0]
        )
        remaining.remove(number)
        columns = join.inputs[number].columns
        conditions = _equal_conditions(join, joined_columns, columns)
        join_clause = (
            f"JOIN ({sides[number]}) r ON {' AND '.join(conditions)}"
            if conditions
            else f"CROSS JOIN ({sides[number]}) r"
        )
        selected = [
            *column_list(joined_columns, "l"),
            *column_list(columns, "r"),
            f"l.{WEIGHT} * r.{WEIGHT} AS {WEIGHT}",
        ]
        hint = hash_join_hint("l") if one_task and conditions else broadcast_hint("l", small)
        query = f"SELECT {hint}{', '.join(selected)} FROM ({query}) l {join_clause}"
        joined_columns += columns
    return select([*column_list(join.columns), WEIGHT], query, f"WHERE {join.condition}" if join.condition else "")


def _equal_conditions(join: Join, left_columns: Sequence[str], right_columns: Sequence[str]) -> list[str]:
    conditions = []
    for pair in join.equal:
        sign = "<=>" if pair.nulls else "="
        for left, right in ((pair.left, pair.right), (pair.right, pair.left)):
            if left in left_columns and right in right_columns:
                conditions.append(f"l.{quoted(left)} {sign} r.{quoted(right)}")
    return conditions


def match_delta(
    op: Match, old: tuple[str | None, str | None], new: tuple[str | None, str | None], types: Mapping[str, str]
) -> str:
    """New rows of the touched groups minus their old rows. Both sides hold only rows of these groups."""
    after, before = _match_sides(op, new, types), _match_sides(op, old, types)
    both = union_all([after, None if before is None else negate(op.columns, before)])
    return consolidate(both or empty_rows(types), op.columns)


def _match_sides(op: Match, sides: tuple[str | None, str | None], types: Mapping[str, str]) -> str | None:
    if sides == (None, None):
        return None
    names = (op.left.columns, op.right.columns)
    # deleted rows must not match: after consolidation every weight is above 0
    left, right = (
        consolidate(side, columns)
        if side is not None
        else empty_rows({name: types.get(name, "INT") for name in columns})
        for side, columns in zip(sides, names, strict=True)
    )
    one_sided = op.kind in ("semi", "anti")
    weight = f"l.{WEIGHT}" if one_sided else f"coalesce(l.{WEIGHT}, 1) * coalesce(r.{WEIGHT}, 1)"
    selected = [*column_list(op.columns), f"{weight} AS {WEIGHT}"]
    return f"SELECT {', '.join(selected)} FROM ({left}) l {_MATCHES[op.kind]} JOIN ({right}) r ON {match_condition(op)}"


def unmatchable_delta(op: Match, left: str | None, right: str | None, types: Mapping[str, str]) -> str | None:
    """The delta of rows that have no match because an equal column is null."""
    parts = []
    for side, kinds, columns in (
        (left, ("left", "full", "anti"), op.left.columns),
        (right, ("right", "full"), op.right.columns),
    ):
        strict = [name for pair in op.equal if not pair.nulls for name in (pair.left, pair.right) if name in columns]
        if side is None or op.kind not in kinds or not strict:
            continue
        has_null = " OR ".join(f"{quoted(name)} IS NULL" for name in strict)
        selected = [quoted(n) if n in columns else f"CAST(NULL AS {types[n]}) AS {quoted(n)}" for n in op.columns]
        parts.append(select([*selected, WEIGHT], side, f"WHERE {has_null}"))
    query = union_all(parts)
    return None if query is None else consolidate(query, op.columns)


def regroup_delta(op: Aggregate, rows: str, before: str | None) -> str:
    """Recomputes the touched groups with Spark's own functions, and subtracts their stored result `before`."""
    group = f"GROUP BY {', '.join(column_list(op.keys))}" if op.keys else ""
    selected = [*column_list(op.keys), *(f"{call.sql} AS {quoted(call.name)}" for call in op.calls)]
    after = select([*selected, f"CAST(1 AS BIGINT) AS {WEIGHT}"], unweighted(rows, op.input.columns), group)
    return _difference(after, before, op.columns)


def ranking_delta(op: Ranked, rows: str, before: str | None) -> str:
    """Recomputes the window functions of the touched partitions, and subtracts their stored result `before`."""
    selected = [*column_list(op.input.columns), *(f"{sql} AS {quoted(name)}" for name, sql in op.expressions)]
    after = select([*selected, f"CAST(1 AS BIGINT) AS {WEIGHT}"], unweighted(rows, op.input.columns))
    return _difference(after, before, op.columns)


def _difference(after: str, before: str | None, columns: Sequence[str]) -> str:
    both = union_all([after, None if before is None else negate(columns, before)])
    assert both is not None
    return consolidate(both, columns)


def sum_terms(op: Aggregate, sums: Sums, delta: str) -> str:
    """The term that each changed row adds to each sum of its group."""
    terms = [f"CAST({sum_.term} AS {sum_.type}) AS {quoted(sum_.name)}" for sum_ in sums.columns]
    return select([*column_list(op.keys), *terms], delta)


def total_sums(op: Aggregate, sums: Sums, query: str) -> str:
    """The total of each sum, one row per group."""
    group = f"GROUP BY {', '.join(column_list(op.keys))}" if op.keys else ""
    totals = [
        f"coalesce(sum({quoted(sum_.name)}), CAST(0 AS {sum_.type})) AS {quoted(sum_.name)}" for sum_ in sums.columns
    ]
    return select([*column_list(op.keys), *totals], query, group)


def consolidate_sums(op: Aggregate, sums: Sums, query: str) -> str:
    """The totals of all groups that still have rows."""
    total = total_sums(op, sums, query)
    return f"{total} HAVING sum({quoted(COUNT)}) <> 0" if op.keys else total


def sums_delta(op: Aggregate, sums: Sums, delta: str | None, before: str | None, one_task: bool) -> str:
    """For each touched group: the delta of its sums, their old values (`…_old`) and their new values (`…_now`)."""
    names = [*column_list(op.keys), *column_list(sum_.name for sum_ in sums.columns)]
    parts = [
        None if query is None else select([*names, f"{touched} AS __touched"], query)
        for query, touched in ((delta, 1), (before, 0))
    ]
    # not old + delta: adding two wide decimals loses a digit, sum() of a column does not
    totals = [
        f"coalesce(sum({quoted(sum_.name)}){filter_}, CAST(0 AS {sum_.type})) AS {quoted(sum_.name + suffix)}"
        for suffix, filter_ in _OF_GROUP.items()
        for sum_ in sums.columns
    ]
    rest = f"GROUP BY {', '.join(column_list(op.keys))} HAVING max(__touched) = 1" if op.keys else ""
    rows = union_all(parts) or _no_sums(sums)
    return select([*column_list(op.keys), *totals], in_one_task(rows) if one_task else rows, rest)


OLD, NOW = "_old", "_now"
"""Suffixes of a sum's name: its value before and after a batch."""
_OF_GROUP = {"": " FILTER (WHERE __touched = 1)", OLD: " FILTER (WHERE __touched = 0)", NOW: ""}


def _no_sums(sums: Sums) -> str:
    return (
        f"SELECT {', '.join(f'CAST(0 AS {sum_.type}) AS {quoted(sum_.name)}' for sum_ in sums.columns)}, 1 AS __touched"
    )


def aggregate_delta(op: Aggregate, sums: Sums, groups: str, first: bool) -> str:
    """New result rows of the touched groups minus their old ones, where they differ."""
    before, after = (sums.results(lambda sum_, suffix=suffix: quoted(sum_.name + suffix)) for suffix in (OLD, NOW))  # type: ignore[misc]
    existed, exists = (group_exists(op, suffix) for suffix in (OLD, NOW))
    if first:
        existed = "false"
    same = " AND ".join([existed, exists, *(f"({a}) <=> ({b})" for a, b in zip(before, after, strict=True))])
    rows = [(after, 1, exists), *([] if first else [(before, -1, existed)])]
    query = union_all(
        _result_rows(op, values, weight, groups, f"{group_exists_} AND NOT ({same})")
        for values, weight, group_exists_ in rows
    )
    assert query is not None
    return query


def copies_with_id(op: Aggregate, groups: str, names: Sequence[str]) -> str:
    """Rows without a key, each copy with an `_id`: a hash of the row and the number of the copy."""
    counts = [quoted(COUNT + suffix) for suffix in (OLD, NOW)]
    copy = f"sequence(least({', '.join(counts)}), greatest({', '.join(counts)}) - 1)"
    time_format = "yyyy-MM-dd HH:mm:ss.SSSSSS"
    options = f"map('timestampFormat', '{time_format}', 'timestampNTZFormat', '{time_format}')"
    row = ", ".join(column_list(names))
    return select(
        [
            f"concat(sha2(to_json(struct({row}), {options}), 256), '-', __copy) AS {quoted(ID)}",
            *column_list(names),
            f"CAST(sign({counts[1]} - {counts[0]}) AS BIGINT) AS {WEIGHT}",
        ],
        select([f"{quoted(a)} AS {quoted(b)}" for a, b in zip(op.keys, names, strict=True)] + counts, groups),
        f"LATERAL VIEW explode({copy}) __copies AS __copy WHERE {counts[0]} <> {counts[1]}",
    )


def aggregate_rows(op: Aggregate, sums: Sums, groups: str) -> str:
    """The result rows of all groups, from totalled sums."""
    return _result_rows(op, sums.results(lambda sum_: quoted(sum_.name)), 1, groups, group_exists(op))


def _result_rows(op: Aggregate, values: Sequence[str], weight: int, groups: str, where: str) -> str:
    results = [f"{value} AS {quoted(call.name)}" for value, call in zip(values, op.calls, strict=True)]
    return select([*column_list(op.keys), *results, f"CAST({weight} AS BIGINT) AS {WEIGHT}"], groups, f"WHERE {where}")


def group_exists(op: Aggregate, suffix: str = "") -> str:
    """The condition that a group exists: it has rows. The group of an aggregate without keys always exists."""
    return f"{quoted(COUNT + suffix)} > 0" if op.keys else "true"
