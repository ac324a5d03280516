"""The words of a text: the same rule for indexed words and queried words."""

from __future__ import annotations

import re
import unicodedata

LONGEST = 64
"""Characters of a word that count. Even at four bytes each, the entry of a word fits into a key of the store."""

_WORD = re.compile(r"\w+")


def tokens(text: str) -> set[str]:
    """The words of a text, with case and Unicode variants folded."""
    folded = text.lower() if text.isascii() else unicodedata.normalize("NFKC", text.casefold())
    return {word[:LONGEST] for word in _WORD.findall(folded)}
