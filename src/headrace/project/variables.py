"""Fills in `${NAME:-default}` in values of the project file, and redacts secrets."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

from headrace.core.errors import ProjectError, did_you_mean
from headrace.project.yaml_tree import Path_, Tree

# `$$` is a dollar sign; the last alternative matches malformed references
_REFERENCE = re.compile(r"\$\$|\$\{(secret:)?([A-Za-z_][A-Za-z0-9_.-]*)(?::-([^}]*))?\}|\$\{[^}\n]*\}?")
_HIDDEN = "****"


def _forms(value: str) -> set[str]:
    """The forms of a secret in output: plain, escaped by Python or JSON, or URL-encoded."""
    escaped = {repr(value)[1:-1], *(json.dumps(value, ensure_ascii=plain)[1:-1] for plain in (True, False))}
    return {value, *escaped, quote(value), quote(value, safe=""), quote_plus(value)}


@dataclass
class Secrets:
    """The secret values read while loading, to redact them in all later output."""

    values: set[str] = field(default_factory=set)

    def redact(self, text: str) -> str:
        """The text with every known secret redacted."""
        for value in sorted(self.values, key=len, reverse=True):
            for form in _forms(value):
                text = text.replace(form, _HIDDEN)
        return text

    def add(self, value: str) -> None:
        """Add a value to redact. Short values too: redacting too much is harmless."""
        if value:
            self.values.add(value)


@dataclass(frozen=True)
class Variables:
    """Resolves references: the project's `variables:`, then the environment; secrets from files or the environment."""

    declared: Mapping[str, Any]
    secret_files: Mapping[str, Any]
    root: Path
    secrets: Secrets
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def fill(self, tree: Tree, errors: list[ProjectError]) -> Tree:
        """Replace every reference. Unresolved ones are added to `errors`."""
        return Tree(self._fill(tree.data, (), tree, errors), tree.origins)

    def _fill(self, value: Any, path: Path_, tree: Tree, errors: list[ProjectError]) -> Any:
        if isinstance(value, dict):
            return {key: self._fill(child, (*path, key), tree, errors) for key, child in value.items()}
        if isinstance(value, list):
            return [self._fill(child, (*path, i), tree, errors) for i, child in enumerate(value)]
        if isinstance(value, str) and "$" in value:
            try:
                return self._replace(value)
            except ProjectError as error:
                errors.append(error.at(tree.origin(path)))
        return value

    def _replace(self, text: str) -> Any:
        whole = _REFERENCE.fullmatch(text)
        if whole and whole[2] and not whole[1] and self.declared.get(whole[2]) is not None:
            return self.declared[whole[2]]  # keeps the type of numbers and lists
        return _REFERENCE.sub(self._resolve, text)

    def _resolve(self, match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        secret, name, default = match.groups()
        if name is None:
            raise _malformed(match[0])
        value = self._secret(name) if secret else self.text(name)
        if value is not None and secret:
            self.secrets.add(value)
        if value is None:
            value = default  # written in the file in plain text, so not a secret
        if value is None:
            raise self._missing(name, bool(secret))
        return value

    def text(self, name: str) -> str | None:
        """The value of a variable as text; None if it has none."""
        value = self.declared.get(name)
        return self.environment.get(name) if value is None else _as_text(value)

    def disallowed(self, choices: Mapping[str, Any]) -> Iterator[tuple[str, ProjectError]]:
        """The variables whose value is not among their `choices`, each with its error."""
        for name, allowed in choices.items():
            value, allowed_texts = (
                self.text(name),
                [_as_text(choice) for choice in allowed] if isinstance(allowed, list) else [],
            )
            if value is not None and allowed_texts and value not in allowed_texts:
                message = f"variable '{name}' cannot be '{value}'"
                yield name, ProjectError("bad-value", message, hint=did_you_mean(value, allowed_texts, "values"))

    def _secret(self, name: str) -> str | None:
        if name not in self.secret_files:
            return self.environment.get(name)
        file = str(self.secret_files[name])
        try:
            return (self.root / file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise ProjectError(
                "secret-unreadable",
                f"secret '{name}' cannot be read from its file: {reason}",
                hint=f"make {file} readable, or remove it from 'secrets:'",
            ) from error

    def _missing(self, name: str, secret: bool) -> ProjectError:
        if secret:
            return ProjectError(
                "unknown-secret",
                f"secret '{name}' is set neither under 'secrets:' nor in the environment",
                hint=f"export {name}=…, or add 'secrets: {{{name}: path/to/file}}'",
            )
        return ProjectError(
            "unknown-variable",
            f"variable '{name}' is set neither under 'variables:' nor in the environment and has no default",
            hint=f"write ${{{name}:-default}}, or export {name}=…; {did_you_mean(name, self.declared, 'variables')}",
        )


def _as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def names_in(value: Any) -> set[str]:
    """The variables that a value refers to, at any depth."""
    if isinstance(value, dict | list):
        parts = value.values() if isinstance(value, dict) else value
        return {name for part in parts for name in names_in(part)}
    references = _REFERENCE.finditer(value) if isinstance(value, str) else ()
    return {match[2] for match in references if match[2] and not match[1]}


def _malformed(text: str) -> ProjectError:
    return ProjectError(
        "bad-reference",
        f"'{text[:60]}' is not a reference to a variable",
        hint="write ${NAME}, ${NAME:-default} or ${secret:NAME}; a plain dollar sign before a bracket is $${",
    )
