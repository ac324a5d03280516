"""The draft of a migrated project: its files, its secrets and notes for the user."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.core.errors import ProjectError

DESCRIPTORS_PATH = "schemas/messages.desc"
"""The path of the descriptor set in a migrated project."""
NO_EQUIVALENT = "Headrace has no equivalent"
_SECRET_HEADERS = ("authorization", "proxy-authorization", "x-api-key", "api-key", "cookie")

Kind = Literal["not_carried", "check", "not_needed"]


@dataclass(frozen=True)
class MigrationNote:
    """A note about one setting.

    `not_carried`: the setting is lost. `check`: it is carried over, and the user should check the result. `not_needed`:
    it has no counterpart because none is needed.
    """

    kind: Kind
    key: str
    message: str

    def to_json(self) -> dict[str, str]:
        return {"kind": self.kind, "key": self.key, "message": self.message}


@dataclass
class Draft:
    """The project so far, and the settings that are not used yet."""

    settings: Mapping[str, Any]
    document: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str | bytes] = field(default_factory=dict)
    notes: list[MigrationNote] = field(default_factory=list)
    secrets: dict[str, str] = field(default_factory=dict)
    """The settings that held secrets, by name of the secret."""
    descriptors: bytes | None = None
    """The descriptor set, if one was found."""
    schemas: str | dict[str, Any] = DESCRIPTORS_PATH
    """The option `descriptors` of formats: a path, or the options of a registry."""
    seen: set[str] = field(default_factory=set)

    def take(self, key: str, default: str = "") -> str:
        """The value of a setting, which then counts as used."""
        self.seen.add(key)
        value = self.settings.get(key)
        return default if value is None or value == "" else _text(value)

    def prefixed(self, prefix: str) -> dict[str, str]:
        """All unused settings with a prefix, by name without the prefix."""
        keys = [key for key in self.settings if key.startswith(prefix) and key not in self.seen]
        return {key.removeprefix(prefix): self.take(key) for key in keys}

    def is_on(self, key: str) -> bool:
        return self.take(key).strip().lower() == "true"

    def json(self, key: str, default: Any = None) -> Any:
        """The value of a setting that is JSON."""
        text = self.take(key)
        if not text:
            return default
        try:
            return json.loads(text, strict=False)
        except ValueError as error:
            message = f"{key} is not JSON: {error}"
            raise ProjectError("migrate-unreadable", message, hint="check its quotes and commas") from None

    def note(self, kind: Kind, key: str, message: str) -> None:
        self.notes.append(MigrationNote(kind, key, message))

    def secret(self, name: str, key: str) -> str:
        """A reference to a secret, in place of its value."""
        variable = re.sub(r"[^A-Z0-9]+", "_", name.upper()).strip("_")
        self.secrets[variable] = key
        return f"${{secret:{variable}}}"

    def part(self, settings: Mapping[str, Any]) -> Draft:
        """The same draft with a part of the settings, such as those of one stream."""
        return Draft(settings, self.document, self.files, self.notes, self.secrets, self.descriptors, self.schemas)


def escape_variables(text: str) -> str:
    """Escape a text so that no part of it is read as a variable of the project."""
    return text.replace("$$", "$$$$").replace("${", "$${")


def split_list(text: str) -> list[str]:
    """The items of a comma-separated list."""
    return [item.strip() for item in text.split(",") if item.strip()]


def valid_name(text: str, fallback: str) -> str:
    """A valid name for a stream, flow or project."""
    words = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
    return (words if words[:1].isalpha() else f"{fallback}_{words}".rstrip("_"))[:60]


def header_value(draft: Draft, name: str, value: str, place: str) -> str:
    """The value of a header, or a reference to a secret if it is a credential."""
    if name.lower() in _SECRET_HEADERS or "token" in name.lower():
        return draft.secret(f"header_{name}", f"{place}.{name}")
    return value


def duration(text: str) -> str:
    number = int(text)
    return f"{number // 1000}s" if number % 1000 == 0 and number else f"{number}ms"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
