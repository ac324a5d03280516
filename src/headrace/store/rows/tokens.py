"""The words of a text: one rule for those that are indexed and those that are asked for."""

from __future__ import annotations

import re
import unicodedata

LONGEST = 64
"""Characters of a word that count: with any four bytes each, the entry of a word still fits a key of the store."""

_WORD = re.compile(r"\w+")


def tokens(text: str) -> set[str]:
    """The words of a text, upper and lower case and ways to write a character made one."""
    folded = text.lower() if text.isascii() else unicodedata.normalize("NFKC", text.casefold())
    return {word[:LONGEST] for word in _WORD.findall(folded)}
