"""The rules: what a change of an operator's inputs changes in its result. One function per rule, texts in, text out.

Weighted rows add up, so a rule is right when old result + its answer = the result of the new inputs. Linear operators
need no rule: what they do to rows they do to changes. `relations` says which texts the rules get.
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


def consolidate(text: str, columns: Sequence[str]) -> str:
    """Each row once, with all its weights added up; those that come to nothing are left out."""
    group = f"GROUP BY {', '.join(column_list(columns))} " if columns else ""
    total = f"sum({WEIGHT})"
    return select([*column_list(columns), f"{total} AS {WEIGHT}"], text, f"{group}HAVING {total} <> 0")


def unweighted(text: str, columns: Sequence[str]) -> str:
    """Each row as often as it is there, without a weight: what Spark's own aggregates and windows work on."""
    repeated = f"LATERAL VIEW explode(array_repeat(0, CAST({WEIGHT} AS INT))) __copies AS __copy"
    return select(column_list(columns) or ["1 AS `__one`"], consolidate(text, columns), repeated)


def join_delta(
    join: Join,
    delta: Sequence[str | None],
    old: Sequence[str | None],
    new: Sequence[str | None],
    small: bool,
    one_task: bool,
) -> str | None:
    """The change of each input, joined with the others: those before it as they were, those after it as they are."""
    terms = []
    for number, change in enumerate(delta):
        sides = [*old[:number], change, *new[number + 1 :]]
        given = [side for side in sides if side is not None]
        if len(given) == len(sides):  # a side without rows leaves nothing
            terms.append(join_sides(join, given, number, small, one_task))
    return union_all(terms)


def join_sides(join: Join, sides: Sequence[str], first: int, small: bool, one_task: bool = False) -> str:
    """The sides joined one after the other, beginning with the one that has few rows, along the equal columns."""
    if one_task:
        sides = [in_one_task(side) for side in sides]
    text, have = sides[first], list(join.inputs[first].columns)
    left = [number for number in range(len(sides)) if number != first]
    while left:
        number = next((n for n in left if _equal_conditions(join, have, join.inputs[n].columns)), left[0])
        left.remove(number)
        columns = join.inputs[number].columns
        same = _equal_conditions(join, have, columns)
        how = f"JOIN ({sides[number]}) r ON {' AND '.join(same)}" if same else f"CROSS JOIN ({sides[number]}) r"
        what = [*column_list(have, "l"), *column_list(columns, "r"), f"l.{WEIGHT} * r.{WEIGHT} AS {WEIGHT}"]
        hint = hash_join_hint("l") if one_task and same else broadcast_hint("l", small)
        text = f"SELECT {hint}{', '.join(what)} FROM ({text}) l {how}"
        have += columns
    return select([*column_list(join.columns), WEIGHT], text, f"WHERE {join.condition}" if join.condition else "")


def _equal_conditions(join: Join, have: Sequence[str], columns: Sequence[str]) -> list[str]:
    found = []
    for one in join.equal:
        sign = "<=>" if one.nulls else "="
        for left, right in ((one.left, one.right), (one.right, one.left)):
            if left in have and right in columns:
                found.append(f"l.{quoted(left)} {sign} r.{quoted(right)}")
    return found


def match_delta(
    op: Match, old: tuple[str | None, str | None], new: tuple[str | None, str | None], types: Mapping[str, str]
) -> str:
    """The touched groups as they are, less the same as they were. Both sides hold only the rows of those groups."""
    after, before = _match_sides(op, new, types), _match_sides(op, old, types)
    both = union_all([after, None if before is None else negate(op.columns, before)])
    return consolidate(both or empty_rows(types), op.columns)


def _match_sides(op: Match, sides: tuple[str | None, str | None], types: Mapping[str, str]) -> str | None:
    if sides == (None, None):
        return None
    names = (op.left.columns, op.right.columns)
    # rows that came and went must not match, so each side is added up first; then every weight is above 0
    left, right = (
        consolidate(side, columns)
        if side is not None
        else empty_rows({name: types.get(name, "INT") for name in columns})
        for side, columns in zip(sides, names, strict=True)
    )
    one_sided = op.kind in ("semi", "anti")
    weight = f"l.{WEIGHT}" if one_sided else f"coalesce(l.{WEIGHT}, 1) * coalesce(r.{WEIGHT}, 1)"
    what = [*column_list(op.columns), f"{weight} AS {WEIGHT}"]
    return f"SELECT {', '.join(what)} FROM ({left}) l {_MATCHES[op.kind]} JOIN ({right}) r ON {match_condition(op)}"


def unmatchable_delta(op: Match, left: str | None, right: str | None, types: Mapping[str, str]) -> str | None:
    """What changed among rows that match nothing because a column that has to be equal is null."""
    parts = []
    for side, kinds, columns in (
        (left, ("left", "full", "anti"), op.left.columns),
        (right, ("right", "full"), op.right.columns),
    ):
        strict = [name for one in op.equal if not one.nulls for name in (one.left, one.right) if name in columns]
        if side is None or op.kind not in kinds or not strict:
            continue
        nothing = " OR ".join(f"{quoted(name)} IS NULL" for name in strict)
        what = [quoted(n) if n in columns else f"CAST(NULL AS {types[n]}) AS {quoted(n)}" for n in op.columns]
        parts.append(select([*what, WEIGHT], side, f"WHERE {nothing}"))
    text = union_all(parts)
    return None if text is None else consolidate(text, op.columns)


def regroup_delta(op: Aggregate, rows: str, before: str | None) -> str:
    """The touched groups computed anew by Spark's own functions, less what was remembered of them."""
    group = f"GROUP BY {', '.join(column_list(op.keys))}" if op.keys else ""
    what = [*column_list(op.keys), *(f"{call.sql} AS {quoted(call.name)}" for call in op.calls)]
    after = select([*what, f"CAST(1 AS BIGINT) AS {WEIGHT}"], unweighted(rows, op.input.columns), group)
    return _difference(after, before, op.columns)


def ranking_delta(op: Ranked, rows: str, before: str | None) -> str:
    """The touched partitions with their window functions computed anew, less what was remembered of them."""
    what = [*column_list(op.input.columns), *(f"{sql} AS {quoted(name)}" for name, sql in op.expressions)]
    after = select([*what, f"CAST(1 AS BIGINT) AS {WEIGHT}"], unweighted(rows, op.input.columns))
    return _difference(after, before, op.columns)


def _difference(after: str, before: str | None, columns: Sequence[str]) -> str:
    both = union_all([after, None if before is None else negate(columns, before)])
    assert both is not None
    return consolidate(both, columns)


def sum_terms(op: Aggregate, sums: Sums, change: str) -> str:
    """What each changed row adds to the sums of its group."""
    what = [f"CAST({one.added} AS {one.type}) AS {quoted(one.name)}" for one in sums.columns]
    return select([*column_list(op.keys), *what], change)


def total_sums(op: Aggregate, sums: Sums, text: str) -> str:
    """One row per group."""
    group = f"GROUP BY {', '.join(column_list(op.keys))}" if op.keys else ""
    what = [f"coalesce(sum({quoted(one.name)}), CAST(0 AS {one.type})) AS {quoted(one.name)}" for one in sums.columns]
    return select([*column_list(op.keys), *what], text, group)


def consolidate_sums(op: Aggregate, sums: Sums, text: str) -> str:
    """The sums of all groups that are still there, added up."""
    total = total_sums(op, sums, text)
    return f"{total} HAVING sum({quoted(COUNT)}) <> 0" if op.keys else total


def sums_delta(op: Aggregate, sums: Sums, change: str | None, before: str | None, one_task: bool) -> str:
    """By touched group: what is added to its sums, what they were (`…_old`) and what they are (`…_now`)."""
    names = [*column_list(op.keys), *column_list(one.name for one in sums.columns)]
    parts = [
        None if text is None else select([*names, f"{touched} AS __touched"], text)
        for text, touched in ((change, 1), (before, 0))
    ]
    # not by adding the two: the sum of two wide decimals loses a digit, that of a column does not
    total = [
        f"coalesce(sum({quoted(one.name)}){which}, CAST(0 AS {one.type})) AS {quoted(one.name + suffix)}"
        for suffix, which in _OF_GROUP.items()
        for one in sums.columns
    ]
    rest = f"GROUP BY {', '.join(column_list(op.keys))} HAVING max(__touched) = 1" if op.keys else ""
    rows = union_all(parts) or _no_sums(sums)
    return select([*column_list(op.keys), *total], in_one_task(rows) if one_task else rows, rest)


OLD, NOW = "_old", "_now"
"""Behind the name of a sum: what it was before a batch, and what it is after it."""
_OF_GROUP = {"": " FILTER (WHERE __touched = 1)", OLD: " FILTER (WHERE __touched = 0)", NOW: ""}


def _no_sums(sums: Sums) -> str:
    return f"SELECT {', '.join(f'CAST(0 AS {one.type}) AS {quoted(one.name)}' for one in sums.columns)}, 1 AS __touched"


def aggregate_delta(op: Aggregate, sums: Sums, groups: str, first: bool) -> str:
    """The rows of the touched groups as they are, less the same as they were, where they differ."""
    before, after = (sums.answers(lambda one, of=of: quoted(one.name + of)) for of in (OLD, NOW))  # type: ignore[misc]
    was, now = (group_exists(op, of) for of in (OLD, NOW))
    if first:
        was = "false"
    same = " AND ".join([was, now, *(f"({a}) <=> ({b})" for a, b in zip(before, after, strict=True))])
    rows = [(after, 1, now), *([] if first else [(before, -1, was)])]
    text = union_all(
        _result_rows(op, values, weight, groups, f"{there} AND NOT ({same})") for values, weight, there in rows
    )
    assert text is not None
    return text


def copies_with_id(op: Aggregate, groups: str, names: Sequence[str]) -> str:
    """Rows that have no key, each copy of them with an `_id`: a hash of the row and the number of the copy."""
    count = [quoted(COUNT + of) for of in (OLD, NOW)]
    copy = f"sequence(least({', '.join(count)}), greatest({', '.join(count)}) - 1)"
    moment = "yyyy-MM-dd HH:mm:ss.SSSSSS"
    options = f"map('timestampFormat', '{moment}', 'timestampNTZFormat', '{moment}')"
    row = ", ".join(column_list(names))
    return select(
        [
            f"concat(sha2(to_json(struct({row}), {options}), 256), '-', __copy) AS {quoted(ID)}",
            *column_list(names),
            f"CAST(sign({count[1]} - {count[0]}) AS BIGINT) AS {WEIGHT}",
        ],
        select([f"{quoted(a)} AS {quoted(b)}" for a, b in zip(op.keys, names, strict=True)] + count, groups),
        f"LATERAL VIEW explode({copy}) __copies AS __copy WHERE {count[0]} <> {count[1]}",
    )


def aggregate_rows(op: Aggregate, sums: Sums, groups: str) -> str:
    """The rows of all groups, of sums that are added up."""
    return _result_rows(op, sums.answers(lambda one: quoted(one.name)), 1, groups, group_exists(op))


def _result_rows(op: Aggregate, values: Sequence[str], weight: int, groups: str, where: str) -> str:
    what = [f"{value} AS {quoted(call.name)}" for value, call in zip(values, op.calls, strict=True)]
    return select([*column_list(op.keys), *what, f"CAST({weight} AS BIGINT) AS {WEIGHT}"], groups, f"WHERE {where}")


def group_exists(op: Aggregate, which: str = "") -> str:
    """A group is there while it has rows; what is not grouped always is."""
    return f"{quoted(COUNT + which)} > 0" if op.keys else "true"
