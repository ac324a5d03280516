"""Small changes to a text that leave all the rest of it as it was written.

A rewritten query keeps its lines: whatever Spark or sqlglot says about line 7 is about line 7 of what the user wrote,
and an offset can be followed back to the place it came from.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Edit:
    """`text[start:end]` becomes `text`."""

    start: int
    end: int
    text: str


def apply_edits(text: str, edits: Iterable[Edit]) -> tuple[str, tuple[Edit, ...]]:
    """The changed text, and the edits as they were made: each with as many line ends as it takes away.

    What another edit takes away as a whole need not be changed before.
    """
    made, pieces, position = [], [], 0
    given = list(edits)
    wanted = (one for one in given if not any(_inside(one, other) for other in given))
    for edit in sorted(wanted, key=lambda one: (one.start, one.end)):
        assert edit.start >= position, f"edits overlap at {edit.start}: {edit.text}"
        lines = text.count("\n", edit.start, edit.end) - edit.text.count("\n")
        kept = Edit(edit.start, edit.end, edit.text + "\n" * lines)
        pieces += [text[position : edit.start], kept.text]
        position = edit.end
        made.append(kept)
    return "".join(pieces) + text[position:], tuple(made)


def _inside(one: Edit, other: Edit) -> bool:
    if one.start == one.end:
        return other.start < one.start < other.end
    return other.start <= one.start and one.end <= other.end and other.end - other.start > one.end - one.start


def original_offset(offset: int, edits: Iterable[Edit]) -> int:
    """Where something in the changed text was before these edits; what an edit wrote is where the edit began."""
    moved = 0
    for edit in edits:
        begin = edit.start + moved
        if offset < begin:
            break
        if offset < begin + len(edit.text):
            return edit.start
        moved += len(edit.text) - (edit.end - edit.start)
    return offset - moved


def edited_offset(offset: int, edits: Iterable[Edit]) -> int:
    """Where something that no edit touches is in the changed text."""
    return offset + sum(len(edit.text) - (edit.end - edit.start) for edit in edits if edit.end <= offset)
