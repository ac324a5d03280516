"""The JSON Schemas of a folder, compiled in the workers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urldefrag, urljoin, urlsplit

import jsonschema_rs

from headrace.core.errors import ProjectError

Texts = tuple[tuple[str, str], ...]
"""The files of a folder: their relative names, and their texts with references that can be resolved."""
_BASE = "file:///"
_DRAFTS: Mapping[int, tuple[Any, int]] = {
    4: (jsonschema_rs.Draft4Validator, jsonschema_rs.Draft4),
    6: (jsonschema_rs.Draft6Validator, jsonschema_rs.Draft6),
    7: (jsonschema_rs.Draft7Validator, jsonschema_rs.Draft7),
    2019: (jsonschema_rs.Draft201909Validator, jsonschema_rs.Draft201909),
    2020: (jsonschema_rs.Draft202012Validator, jsonschema_rs.Draft202012),
}
_LONGEST = 300
# below the first are data, below the second are schemas by name
_DATA = frozenset({"enum", "const", "default", "examples"})
_NAMED = frozenset({"properties", "patternProperties", "definitions", "$defs", "dependencies", "dependentSchemas"})


def read_folder(folder: Path, shown: str) -> Texts:
    """All schemas below a folder. Refuses invalid schemas and references that cannot be resolved."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.json") if path.is_file())
    if not names:
        raise ProjectError(
            "missing-file", f"there is no JSON Schema in '{shown}'", hint="name a folder with .json files"
        )
    schemas = []
    for name in names:
        try:
            document = json.loads((folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise _bad(f"{shown}/{name}", str(error)) from None
        schemas.append((name, json.dumps(_Local(name, names, f"{shown}/{name}").of(document))))
    return tuple(schemas)


def _bad(file: str, why: str) -> ProjectError:
    reason = why.splitlines()[0][:_LONGEST] if why else "it cannot be read"
    return ProjectError(
        "bad-json-schema", f"'{file}' is not a JSON Schema: {reason}", hint="see `draft`, and its $refs"
    )


@dataclass(frozen=True)
class _Local:
    """A schema without ids, whose references name files of the folder."""

    name: str
    names: list[str]
    shown: str

    def of(self, node: Any) -> Any:
        match node:
            case list():
                return [self.of(one) for one in node]
            case dict():
                return {key: self._member(key, value) for key, value in node.items() if not _is_id(key, value)}
        return node

    def _member(self, key: str, value: Any) -> Any:
        if key in _DATA:
            return value
        if key in _NAMED and isinstance(value, dict):
            return {name: self.of(one) for name, one in value.items()}
        if key == "$ref" and isinstance(value, str):
            return self._reference(value)
        return self.of(value)

    def _reference(self, text: str) -> str:
        address, part = urldefrag(text)
        if not address:
            return text
        # ids are where a schema was published; here only the file name at the end of the path counts
        path = urlsplit(urljoin(_BASE + self.name, address)).path
        fitting = [name for name in self.names if f"/{path}".endswith(f"/{name}")]
        if not fitting:
            raise _bad(self.shown, f"it refers to '{text}', and there is no such file")
        return f"{_BASE}{max(fitting, key=len)}#{part}"


def _is_id(key: str, value: Any) -> bool:
    return key in ("id", "$id") and isinstance(value, str)


@dataclass
class Validators:
    """Validators by file name, each compiled on first use."""

    draft: int
    texts: Texts
    _schemas: dict[str, Any] = field(init=False, repr=False)
    _registry: Any = field(init=False, repr=False)
    _compiled: dict[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._schemas = {name: json.loads(text) for name, text in self.texts}
        draft = _DRAFTS[self.draft][1]
        self._registry = jsonschema_rs.Registry([(_BASE + name, one) for name, one in self._schemas.items()], draft)

    def get(self, name: str | None) -> Any:
        """The validator of a file; None if it does not exist."""
        if name not in self._schemas:
            return None
        if name not in self._compiled:
            make = _DRAFTS[self.draft][0]
            self._compiled[name] = make(
                self._schemas[name], registry=self._registry, base_uri=_BASE + name, offline=True
            )
        return self._compiled[name]

    def check(self, shown: str) -> None:
        for name in self._schemas:
            try:
                self.get(name)
            except (ValueError, jsonschema_rs.ReferencingError) as error:
                raise _bad(f"{shown}/{name}", str(error)) from None


@lru_cache(maxsize=8)
def validators(draft: int, texts: Texts) -> Validators:
    """The validators of this process, shared by its tasks."""
    return Validators(draft, texts)


def errors_of(validator: Any, document: Any, most: int) -> list[dict[str, str]]:
    return [
        {"keyword": error.kind.name, "path": _pointer(error.instance_path), "message": error.message[:_LONGEST]}
        for error in islice(validator.iter_errors(document), most)
    ]


def _pointer(path: list[str | int]) -> str:
    return "".join("/" + str(one).replace("~", "~0").replace("/", "~1") for one in path)
