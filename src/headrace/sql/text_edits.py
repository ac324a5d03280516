"""Edits of a text that leave the rest unchanged.

A rewritten query keeps its lines: an error of Spark or sqlglot about line 7 is about line 7 of the user's text, and an
offset can be mapped back to the original.
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
    """The edited text, and the applied edits, each padded with the line breaks it removes.

    An edit inside the range of another edit is skipped.
    """
    applied, pieces, position = [], [], 0
    all_edits = list(edits)
    outermost = (edit_ for edit_ in all_edits if not any(_is_inside(edit_, other_edit) for other_edit in all_edits))
    for edit in sorted(outermost, key=lambda edit_: (edit_.start, edit_.end)):
        assert edit.start >= position, f"edits overlap at {edit.start}: {edit.text}"
        lines = text.count("\n", edit.start, edit.end) - edit.text.count("\n")
        padded = Edit(edit.start, edit.end, edit.text + "\n" * lines)
        pieces += [text[position : edit.start], padded.text]
        position = edit.end
        applied.append(padded)
    return "".join(pieces) + text[position:], tuple(applied)


def _is_inside(inner: Edit, outer: Edit) -> bool:
    if inner.start == inner.end:
        return outer.start < inner.start < outer.end
    return outer.start <= inner.start and inner.end <= outer.end and outer.end - outer.start > inner.end - inner.start


def original_offset(offset: int, edits: Iterable[Edit]) -> int:
    """The offset in the original text; text written by an edit maps to the start of the edit."""
    shift = 0
    for edit in edits:
        start = edit.start + shift
        if offset < start:
            break
        if offset < start + len(edit.text):
            return edit.start
        shift += len(edit.text) - (edit.end - edit.start)
    return offset - shift


def edited_offset(offset: int, edits: Iterable[Edit]) -> int:
    """The offset in the edited text of a position outside all edits."""
    return offset + sum(len(edit.text) - (edit.end - edit.start) for edit in edits if edit.end <= offset)
