"""The text that generations of views are compared by: the same in every version."""

from __future__ import annotations

import hashlib

from tests.views.outlines import blocks
from tests.views.test_normalise import TABLES, VIEWS

from headrace.views.algebra.fingerprint import view_text
from headrace.views.compile.normalise import normalise

DIGEST = "b5874dfad9280c29e31665dbfdc533570e5ad61bf324a6ac976a9a6d30400611"
"""Of all constructs, as the version of 2026-11-18 wrote them. Another text would make every running view need a new
generation."""


def test_the_text_of_a_view_never_changes() -> None:
    views = [normalise(sql, TABLES, VIEWS) for sql, *_ in blocks("constructs.txt")]
    texts = "\n".join(map(view_text, views))
    assert hashlib.sha256(texts.encode()).hexdigest() == DIGEST
