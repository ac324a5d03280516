"""Texts and bytes."""

from __future__ import annotations

from headrace.functions.function import Call, Function
from headrace.functions.template import fill


def _split(call: Call) -> str:
    if call.text(1) == "":
        return fill("coalesce(split(:s, ' '), CAST(array() AS ARRAY<STRING>))", s=call.args[0])
    if call.text(1) is not None:
        return fill("coalesce(split(:s, :d), CAST(array() AS ARRAY<STRING>))", s=call.args[0], d=call.args[1])
    return fill(
        "coalesce(split(:s, CASE WHEN :d = '' THEN ' ' ELSE :d END), CAST(array() AS ARRAY<STRING>))",
        s=call.args[0],
        d=call.args[1],
    )


FUNCTIONS = (
    Function(
        "ByteToString",
        ("bytes BINARY -> STRING",),
        "Bytes as UTF-8 text; what is no UTF-8 becomes the replacement character.",
        "ByteToString(CAST('abc' AS BINARY))",
        "abc",
        lambda call: fill("make_valid_utf8(CAST(:b AS STRING))", b=call.args[0]),
    ),
    Function(
        "Split",
        ("text STRING, delimiter STRING -> ARRAY<STRING>",),
        "The parts of a text between delimiters. The delimiter is a regular expression; an empty one is a space. "
        "A NULL text or delimiter gives an empty array. Written in another way, as in `split`, it is Spark's own "
        "function, which differs only in what it makes of an empty delimiter and of NULL.",
        "Split('a b c', ' ')",
        "[a, b, c]",
        _split,
        spelled=True,
    ),
)
