"""A project in the making: its files, what is secret, and what people must know about it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.core.errors import ProjectError

PLACE = "schemas/messages.desc"
"""Where a project made here has its descriptor set."""
_SECRET_HEADERS = ("authorization", "proxy-authorization", "x-api-key", "api-key", "cookie")

Kind = Literal["not_carried", "check", "not_needed"]


@dataclass(frozen=True)
class MigrationNote:
    """About one setting: it is lost (`not_carried`), was carried over in a way to be looked at (`check`), or has no
    counterpart because none is needed (`not_needed`)."""

    kind: Kind
    key: str
    message: str

    def to_json(self) -> dict[str, str]:
        """For programs."""
        return {"kind": self.kind, "key": self.key, "message": self.message}


@dataclass
class Draft:
    """What the settings have become so far."""

    settings: Mapping[str, Any]
    document: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str | bytes] = field(default_factory=dict)
    notes: list[MigrationNote] = field(default_factory=list)
    secrets: dict[str, str] = field(default_factory=dict)
    """Names of secrets, and the settings they were in."""
    descriptors: bytes | None = None
    """The descriptor set, when one is at hand."""
    schemas: str | dict[str, Any] = PLACE
    """Where the project finds it."""
    seen: set[str] = field(default_factory=set)

    def take(self, key: str, default: str = "") -> str:
        """A setting, which then counts as dealt with."""
        self.seen.add(key)
        value = self.settings.get(key)
        return default if value is None or value == "" else _text(value)

    def prefixed(self, prefix: str) -> dict[str, str]:
        """All settings of a prefix that are not dealt with, without it."""
        keys = [key for key in self.settings if key.startswith(prefix) and key not in self.seen]
        return {key.removeprefix(prefix): self.take(key) for key in keys}

    def is_on(self, key: str) -> bool:
        """Whether a switch is on."""
        return self.take(key).strip().lower() == "true"

    def json(self, key: str, default: Any = None) -> Any:
        """A setting that is a JSON document."""
        text = self.take(key)
        if not text:
            return default
        try:
            return json.loads(text, strict=False)
        except ValueError as error:
            message = f"{key} is not JSON: {error}"
            raise ProjectError("migrate-unreadable", message, hint="check its quotes and commas") from None

    def note(self, kind: Kind, key: str, message: str) -> None:
        """Tell people something about a setting."""
        self.notes.append(MigrationNote(kind, key, message))

    def secret(self, name: str, key: str) -> str:
        """A reference instead of a value that must not be in a file."""
        plain = re.sub(r"[^A-Z0-9]+", "_", name.upper()).strip("_")
        self.secrets[plain] = key
        return f"${{secret:{plain}}}"

    def part(self, settings: Mapping[str, Any]) -> Draft:
        """The same project, seen from a part of the settings, such as one stream."""
        return Draft(settings, self.document, self.files, self.notes, self.secrets, self.descriptors, self.schemas)


def literal(text: str) -> str:
    """A text in which nothing is taken for a variable of the project."""
    return text.replace("$$", "$$$$").replace("${", "$${")


def name_of(text: str, fallback: str) -> str:
    """A name that a stream, flow or project can have."""
    words = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
    return (words if words[:1].isalpha() else f"{fallback}_{words}".rstrip("_"))[:60]


def hidden(draft: Draft, name: str, value: str, place: str) -> str:
    """The value of a header, or a reference when it lets someone in."""
    if name.lower() in _SECRET_HEADERS or "token" in name.lower():
        return draft.secret(f"header_{name}", f"{place}.{name}")
    return value


def milliseconds(text: str) -> str:
    """A number of milliseconds as a duration."""
    number = int(text)
    return f"{number // 1000}s" if number % 1000 == 0 and number else f"{number}ms"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
