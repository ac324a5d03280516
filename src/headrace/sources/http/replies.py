"""Replies to POSTed records, in the form that the project declares."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.core.errors import RequestError, did_you_mean

HEALTH_WORDS = ("now",)
REPLY_WORDS = ("now", "position", "errors")
REFUSAL_WORDS = ("now", "status", "code", "message", "hint", "fault", "errors")
_WORD = re.compile(r"\{([a-z]+)\}")


def require_words(template: Any, known: Sequence[str]) -> Any:
    """The template; raises ValueError for a word that has no value."""
    for word in _words(template):
        if word not in known:
            raise ValueError(f"'{{{word}}}' is not a known word; {did_you_mean(word, known, 'words')}")
    return template


def _words(template: Any) -> list[str]:
    match template:
        case str():
            match = _WORD.fullmatch(template)
            return [match[1]] if match else []
        case dict():
            return [word for child in template.values() for word in _words(child)]
        case list():
            return [word for child in template for word in _words(child)]
    return []


def filled(template: Any, words: Mapping[str, Any]) -> Any:
    """The template with values in place of its words."""
    match template:
        case str():
            match = _WORD.fullmatch(template)
            return words[match[1]] if match else template
        case dict():
            return {key: filled(child, words) for key, child in template.items()}
        case list():
            return [filled(child, words) for child in template]
    return template


def reply(template: Any, position: int, errors: Sequence[Any] = ()) -> Any:
    """The reply for an accepted record."""
    words = {"now": _now(), "position": position, "errors": list(errors)}
    if template is not None:
        return filled(template, words)
    return {"position": position, **({"errors": list(errors)} if errors else {})}


def health(template: Any) -> Any:
    """The reply of the health path."""
    return filled(template, {"now": _now()})


def refusal(template: Any, error: RequestError, errors: Sequence[Any] = ()) -> Any:
    words = {
        "now": _now(),
        "status": error.status,
        "code": error.code,
        "message": error.message,
        "hint": error.hint,
        "fault": "SERVER_ERROR" if error.status >= 500 else "CLIENT_ERROR",
        "errors": list(errors),
    }
    return filled(template, words)


def _now() -> int:
    return time.time_ns() // 1_000_000
