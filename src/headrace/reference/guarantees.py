"""The delivery guarantee of every sink, from its `guarantee` and from its docstring.

The docstring states it in one sentence, `Delivery: <guarantee>; <how>.`. If the guarantee depends on an option, it has
one sentence per value: ``Delivery with `option: value`: <guarantee>; <how>.``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple, get_args

from headrace.core.component import Component
from headrace.core.kinds import kinds
from headrace.core.sink import Delivery, Sink
from headrace.reference.markdown import docstring, table

_SENTENCE = re.compile(r"Delivery(?: with `(?P<key>\w+): (?P<value>\w+)`)?: (?P<words>[^;]+); (?P<how>.+?)\.(?= |$)")
_STRONGEST_FIRST = get_args(Delivery)


class Guarantee(NamedTuple):
    """One row of the table."""

    sink: str
    option: str
    delivery: str
    words: str
    how: str


def guarantees_table(home: str) -> list[str]:
    """Return a row per sink; `home` is the relative path to the reference folder."""
    guarantee_rows = [row for name, kind in kinds("sinks").items() for row in guarantees(name, kind)]
    guarantee_rows.sort(key=lambda row: (_STRONGEST_FIRST.index(row.delivery), row.sink))
    rows = [(f"[{row.sink}]({home}sinks/{row.sink}.md){row.option}", row.words, row.how) for row in guarantee_rows]
    return table(("sink", "guarantee", "how"), rows)


def guarantees(name: str, kind: type[Component]) -> Iterator[Guarantee]:
    """Yield the guarantees in a sink's docstring. Raises ValueError if they differ from its `guarantee`."""
    sentences = list(_SENTENCE.finditer(" ".join(docstring(kind))))
    if not sentences or not issubclass(kind, Sink):
        raise ValueError(f"{name}: the docstring has no sentence 'Delivery: <guarantee>; <how>.'")
    for sentence in sentences:
        key, value, words, how = sentence.group("key", "value", "words", "how")
        options: dict[str, Any] = {key: value} if key else {}
        delivery = kind.model_construct(None, **options).guarantee
        if not words.startswith(delivery.replace("_", " ")):
            raise ValueError(f"{name}: the docstring says '{words}', but its guarantee is '{delivery}'")
        yield Guarantee(name, f", `{key}: {value}`" if key else "", delivery, words, how)
