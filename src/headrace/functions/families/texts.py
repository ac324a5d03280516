"""Texts and bytes."""

from __future__ import annotations

from headrace.functions.function import Function, FunctionCall
from headrace.functions.template import fill

# empty parts at the end are dropped, unless nothing was split
_PARTS = (
    "element_at(transform(array(split(:s, :d)), _p -> CASE WHEN array_size(_p) < 2 THEN _p "
    "ELSE slice(_p, 1, array_max(transform(_p, (_e, _i) -> CASE WHEN _e = '' THEN 0 ELSE _i + 1 END))) END), 1)"
)


def _split(call: FunctionCall) -> str:
    if any(one.is_null for one in call.args):
        return "CAST(array() AS ARRAY<STRING>)"
    text, delimiter = call.args
    match call.text(1):
        case "":
            parts = fill(_PARTS, s=text, d="' '")
        case None:
            parts = fill(_PARTS, s=text, d=fill("CASE WHEN :d = '' THEN ' ' ELSE :d END", d=delimiter))
        case _:
            parts = fill(_PARTS, s=text, d=delimiter)
    return f"coalesce({parts}, CAST(array() AS ARRAY<STRING>))"


FUNCTIONS = (
    Function(
        "ByteToString",
        ("bytes BINARY -> STRING",),
        "Bytes as UTF-8 text; invalid UTF-8 becomes the replacement character.",
        "ByteToString(CAST('abc' AS BINARY))",
        "abc",
        lambda call: fill("make_valid_utf8(CAST(:b AS STRING))", b=call.args[0]),
    ),
    Function(
        "Split",
        ("text STRING, delimiter STRING -> ARRAY<STRING>",),
        "The parts of a text between delimiters. The delimiter is a regular expression; an empty one is a space. "
        "Empty parts at the end are dropped. A NULL text or delimiter gives an empty array. In another spelling, such "
        "as `split`, it is Spark's function, which treats an empty delimiter, NULL and empty parts at the end "
        "differently; in a flow with `dialect: dagger` every spelling means this one.",
        "Split('a b c', ' ')",
        "[a, b, c]",
        _split,
        spelled=True,
    ),
)
