"""Values that Dagger and Spark write differently: parts of a timestamp, counted distinct values, elements of arrays."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from headrace.sql.dialect.scope import QueryScope, identifiers
from headrace.sql.dialect.syntax import lateral_view, refuse_joins_after
from headrace.sql.query import Query
from headrace.sql.text_edits import Edit
from headrace.sql.tokens import TokenList

_TIME_PARTS = {
    "seconds": ("unix_seconds(", ")"),
    "nanos": ("CAST(pmod(unix_micros(", "), 1000000) * 1000 AS INT)"),
}
_WINDOWS = ("tumble", "hop", "session")


def time_part_edits(query: Query, scope: QueryScope) -> Iterator[Edit]:
    """`event_timestamp.seconds`: a protobuf timestamp is a row of two numbers there, and a timestamp here."""
    for node in query.tree.find_all(exp.Column, exp.Dot):
        parts = identifiers(node)
        part = _TIME_PARTS.get(parts[-1].name.lower()) if len(parts) > 1 else None
        if part is None:
            continue
        kind = scope.path([one.name for one in parts[:-1]], node.find_ancestor(exp.Select))
        if kind is None or not pa.types.is_timestamp(kind):
            continue
        first = int(parts[0].meta["start"])
        item = isinstance(node.parent, exp.Select) and node.arg_key == "expressions"
        name = f" AS {parts[-1].name}" if item else ""
        yield Edit(first, first, part[0])
        yield Edit(int(parts[-2].meta["end"]) + 1, int(parts[-1].meta["end"]) + 1, part[1] + name)


def distinct_count_edits(query: Query, words: TokenList) -> Iterator[Edit]:
    """`COUNT(DISTINCT x)` of a window as the size of the set of its values: Spark refuses the former of a stream."""
    for count in query.tree.find_all(exp.Count):
        distinct, select = count.this, count.find_ancestor(exp.Select)
        group = select.args.get("group") if select is not None else None
        windowed = group is not None and any(
            isinstance(one, exp.Anonymous) and one.name.lower() in _WINDOWS for one in group.expressions
        )
        if not windowed or not isinstance(distinct, exp.Distinct) or len(distinct.expressions) != 1:
            continue
        name = words.at(int(count.meta["start"]))
        close = words.closing(name + 1)
        if words.word(close + 1) != "FILTER":
            yield words.replace(name, name + 2, "CAST(size(collect_set(")
            yield words.replace(close, close, ")) AS BIGINT)")


def unnest_edits(query: Query, words: TokenList, scope: QueryScope) -> Iterator[Edit]:
    """`CROSS JOIN UNNEST(x) AS t(a, b)`: elements of an array, fields of its rows, or keys and values of a map."""
    for node in query.tree.find_all(exp.Unnest):
        starts = [int(part.meta["start"]) for part in node.expressions[0].walk() if "start" in part.meta]
        place = words.at(min(starts))
        while words.word(place) != "UNNEST":
            place -= 1
        refuse_joins_after(words, place + 1, query.place)
        yield from lateral_view(words, place, place + 1, _generator(node, scope))


def _generator(node: exp.Unnest, scope: QueryScope) -> str:
    select = node.find_ancestor(exp.Select)
    names = [part.name for part in identifiers(node.expressions[0])]
    kind = scope.path(names, select) if names else None
    columns = len(node.alias_column_names)
    if kind is not None and pa.types.is_map(kind):
        return "explode"
    if kind is not None and pa.types.is_list(kind):
        fields = kind.value_type.num_fields if pa.types.is_struct(kind.value_type) else 0
        return "inline" if fields and columns in (0, fields) else "explode"
    return "inline" if columns > 1 else "explode"


def dagger_edits(query: Query, words: TokenList, scope: QueryScope) -> Iterator[Edit]:
    """What both understand and Dagger reads in another way; only where the flow says that Dagger's way is meant."""
    yield from _whole_divisions(query, words, scope)
    for index in range(len(words)):
        kind = words.kind(index)
        if kind is TokenType.L_BRACKET:
            yield from _bracket(words, index)
        elif kind is TokenType.STRING and "\\" in (text := words.source(index, index)):
            # a backslash is a backslash there
            yield words.replace(index, index, text.replace("\\", "\\\\"))
        elif kind is TokenType.VAR and words.kind(index + 1) is TokenType.L_PAREN:
            yield from _renamed_function(words, index)


def _whole_divisions(query: Query, words: TokenList, scope: QueryScope) -> Iterator[Edit]:
    """Whole numbers divide to a whole number there, to a fraction in Spark."""
    for division in query.tree.find_all(exp.Div):
        starts = [int(part.meta["start"]) for part in division.right.walk() if "start" in part.meta]
        if not starts or not (scope.is_whole(division.left) and scope.is_whole(division.right)):
            continue
        place = words.at(min(starts))
        while place > 0 and words.kind(place) is not TokenType.SLASH:
            place -= 1
        yield words.replace(place, place, " DIV ")


def _bracket(words: TokenList, index: int) -> Iterator[Edit]:
    """`ARRAY[1, 2]` and `MAP['a', 1]` make values; `x[1]` is the first element, and null when there is none."""
    close = words.closing(index)
    if words.word(index - 1) in ("ARRAY", "MAP"):
        yield words.replace(index, index, "(")
        yield words.replace(close, close, ")")
        return
    yield words.before(_operand(words, index - 1), "try_element_at(")
    yield words.replace(index, index, ", ")
    yield words.replace(close, close, ")")


def _operand(words: TokenList, last: int) -> int:
    """The first word of what a bracket stands behind: `a.b`, `f(x)`, `a[1]`."""
    first = last
    while True:
        if words.kind(first) in (TokenType.R_PAREN, TokenType.R_BRACKET):
            first = words.opening(first)
            named = words.kind(first - 1) in (TokenType.VAR, TokenType.IDENTIFIER, TokenType.R_BRACKET)
            if words.kind(first) is TokenType.L_BRACKET or named:
                first -= 1
                continue
        if words.kind(first - 1) is TokenType.DOT:
            first -= 2
            continue
        return first


def _renamed_function(words: TokenList, index: int) -> Iterator[Edit]:
    """Functions of Flink that Spark has under another name."""
    arguments = words.arguments(index + 1)
    close = words.closing(index + 1)
    match words.word(index), len(arguments):
        case "SHA256", 1:
            yield words.replace(index, index, "sha2")
            yield words.before(close, ", 256")
        case "SPLIT", 2:
            # Spark has one too, which makes something else of empty parts and of NULL
            yield words.replace(index, index, "Split")
        case "JSON_VALUE", 2:
            yield words.replace(index, index, "get_json_object")
        case "TO_TIMESTAMP_LTZ", 2 if words.source(*arguments[1]) in ("0", "3"):
            millis = words.source(*arguments[1]) == "3"
            yield words.replace(index, index, "timestamp_millis" if millis else "timestamp_seconds")
            yield words.replace(arguments[1][0] - 1, arguments[1][1], "")
        case "CURRENT_ROW_TIMESTAMP", 0:
            yield words.replace(index, index, "current_timestamp")
