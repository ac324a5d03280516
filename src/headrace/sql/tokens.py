"""The tokens of a query by index: matching brackets, arguments, the text between two tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sqlglot.tokenizer_core import Token, TokenType

from headrace.sql.text_edits import Edit

_OPEN = {TokenType.L_PAREN: 1, TokenType.L_BRACKET: 1, TokenType.R_PAREN: -1, TokenType.R_BRACKET: -1}


@dataclass(frozen=True)
class TokenList:
    """The tokens of a text."""

    text: str
    tokens: Sequence[Token]
    _at: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._at.update({token.start: index for index, token in enumerate(self.tokens)})

    def __len__(self) -> int:
        return len(self.tokens)

    def at(self, offset: int) -> int:
        return self._at[offset]

    def word(self, index: int) -> str:
        """A token in upper case; empty for strings and quoted names, which are never keywords, and out of range."""
        if not 0 <= index < len(self.tokens):
            return ""
        token = self.tokens[index]
        quoted = token.token_type in (TokenType.STRING, TokenType.IDENTIFIER)
        return "" if quoted else token.text.upper()

    def kind(self, index: int) -> TokenType | None:
        return self.tokens[index].token_type if 0 <= index < len(self.tokens) else None

    def start(self, index: int) -> int:
        return self.tokens[index].start

    def end(self, index: int) -> int:
        """The offset after a token."""
        return self.tokens[index].end + 1

    def source(self, first: int, last: int) -> str:
        return self.text[self.start(first) : self.end(last)]

    def replace(self, first: int, last: int, text: str) -> Edit:
        return Edit(self.start(first), self.end(last), text)

    def before(self, index: int, text: str) -> Edit:
        return Edit(self.start(index), self.start(index), text)

    def after(self, index: int, text: str) -> Edit:
        return Edit(self.end(index), self.end(index), text)

    def closing(self, index: int) -> int:
        """The index of the closing bracket of the one at `index`; the last token if there is none."""
        depth = 0
        for place in range(index, len(self.tokens)):
            depth += _OPEN.get(self.tokens[place].token_type, 0)
            if depth == 0:
                return place
        return len(self.tokens) - 1

    def opening(self, index: int) -> int:
        """The index of the opening bracket of the one at `index`; the first token if there is none."""
        depth = 0
        for place in range(index, -1, -1):
            depth -= _OPEN.get(self.tokens[place].token_type, 0)
            if depth == 0:
                return place
        return 0

    def level(self, first: int, last: int) -> Iterator[int]:
        """The tokens from `first` to `last` outside inner brackets; the brackets themselves are included."""
        place = first
        while place <= last:
            yield place
            if _OPEN.get(self.tokens[place].token_type, 0) > 0:
                place = self.closing(place)
                yield place
            place += 1

    def arguments(self, bracket: int) -> list[tuple[int, int]]:
        """The first and last token of each argument in a bracket."""
        close = self.closing(bracket)
        if close <= bracket + 1:
            return []
        commas = [i for i in self.level(bracket + 1, close - 1) if self.kind(i) is TokenType.COMMA]
        starts = [bracket + 1, *(comma + 1 for comma in commas)]
        return list(zip(starts, [*(comma - 1 for comma in commas), close - 1], strict=True))

    def select_of(self, index: int) -> tuple[int, int]:
        """The first and last token of the innermost SELECT around a token, without its WITH."""
        first = index
        while self.word(first) != "SELECT" and first > 0:
            first = self.opening(first - 1) if _OPEN.get(self.tokens[first - 1].token_type, 0) < 0 else first - 1
        last = first
        for place in self.level(first, len(self.tokens) - 1):
            ends = _OPEN.get(self.tokens[place].token_type, 0) < 0 and self.opening(place) < first
            # `* EXCEPT (a)` is part of a SELECT list
            if ends or (self.word(place) in _ENDS and self.kind(place - 1) is not TokenType.STAR):
                break
            last = place
        return first, last


_ENDS = ("UNION", "EXCEPT", "INTERSECT", "MINUS", ";")
