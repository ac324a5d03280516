"""Turns validation errors into ProjectErrors: code, file and line, nearest name."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from headrace.core.errors import ProjectError, did_you_mean, nearest
from headrace.core.kinds import kinds
from headrace.project.error_location import ErrorLocation, error_location
from headrace.project.model import ProjectSpec
from headrace.project.value_descriptions import describe_expected, describe_value, is_about_type
from headrace.project.variables import Secrets
from headrace.project.yaml_tree import Path_, Tree, dotted

_NAME_HINT = "use lower-case letters, digits and _, starting with a letter, at most 60 of them"
_SECRET_WORDS = ("password", "secret", "token", "passphrase", "pem", "jaas")


def problems_of(
    error: ValidationError,
    tree: Tree,
    model: type[BaseModel] = ProjectSpec,
    *,
    secrets: Secrets | None = None,
    elsewhere: Collection[Path_] = (),
) -> list[ProjectError]:
    """One ProjectError per path, in file order, without paths that are reported `elsewhere`."""
    grouped: dict[Path_, list[_Finding]] = {}
    for detail in error.errors(include_url=False):
        finding = _Finding(detail, error_location(detail, tree.data, model), tree, secrets or Secrets())
        if not any(finding.path[: len(path)] == path for path in elsewhere):
            grouped.setdefault(finding.path, []).append(finding)
    return in_file_order([_problem(findings) for findings in grouped.values()], tree)


def in_file_order(errors: Sequence[ProjectError], tree: Tree) -> list[ProjectError]:
    """The errors in reading order: the project file from top to bottom, then included files."""
    files = list(dict.fromkeys(origin.file for path, origin in sorted(tree.origins.items(), key=lambda o: len(o[0]))))

    def place(error: ProjectError) -> tuple[int, int]:
        where = error.where
        if where is None or where.file not in files:
            return len(files), 0
        return files.index(where.file), where.line or 0

    return sorted(errors, key=place)


@dataclass(frozen=True)
class _Finding:
    """A pydantic error and its location in the file."""

    detail: Any
    location: ErrorLocation
    tree: Tree
    secrets: Secrets

    @property
    def path(self) -> Path_:
        return self.location.path

    @property
    def name(self) -> str:
        return str(self.path[-1]) if self.path else ""

    @property
    def parent(self) -> str:
        return dotted(self.path[:-1]) or "the project"

    def error(self, code: str, message: str, hint: str | None) -> ProjectError:
        shown = None if hint is None else self.secrets.redact(hint)
        return ProjectError(code, self.secrets.redact(message), where=self.tree.origin(self.path), hint=shown)

    def shown_value(self) -> str:
        """The value in the file, unless it may be a secret."""
        value = self.detail.get("input")
        hidden = any(word in str(part).lower() for part in self.path for word in _SECRET_WORDS)
        hidden = hidden or any(secret in str(value) for secret in self.secrets.values)
        return "a hidden value" if hidden and isinstance(value, str | int | float) else describe_value(value)


def _problem(findings: Sequence[_Finding]) -> ProjectError:
    """The error for all findings at one path: several are alternatives of one value."""
    first = findings[0]
    match first.detail["type"]:
        case "extra_forbidden":
            hint = did_you_mean(first.name, first.location.siblings, "keys")
            return first.error("unknown-key", f"unknown key '{first.name}' in {first.parent}", hint)
        case "missing" if first.path and isinstance(first.path[-1], int):
            parent = dotted(first.path[:-1])
            return first.error("bad-value", f"{parent}: a value is missing after the first", first.location.help)
        case "missing":
            return first.error("missing-key", f"{first.parent} needs the key '{first.name}'", first.location.help)
        case "union_tag_not_found":
            hint = did_you_mean("", kinds(first.location.family), "types")
            return first.error("missing-key", f"{dotted(first.path)} needs the key 'type'", hint)
        case "union_tag_invalid":
            tag = str(first.detail["ctx"]["tag"])
            hint = did_you_mean(tag, kinds(first.location.family), "types")
            return first.error("unknown-kind", f"unknown type '{tag}' in {dotted(first.path)}", hint)
        case "value_error" | "assertion_error" if len(findings) == 1:
            return _own_check(first)
        case str() as code if "-" in code:  # a check of a kind with its own code
            return first.error(
                code, f"{dotted(first.path) or 'the project'}: {first.detail['msg']}", first.location.help
            )
    if "[key]" in first.detail["loc"] or first.path == ("project",):
        return first.error("bad-name", f"{first.shown_value()} is not a name for {_thing(first.path)}", _NAME_HINT)
    return _wrong_value(findings)


def _thing(path: Path_) -> str:
    section = str(path[0])
    return f"a {section.removesuffix('s')}"


def _own_check(finding: _Finding) -> ProjectError:
    """The error of a model's own check."""
    inner = finding.detail["ctx"]["error"]
    if isinstance(inner, ProjectError):
        return finding.error(
            inner.code, f"{dotted(finding.path)}: {inner.message}", inner.hint or finding.location.help
        )
    return finding.error("bad-value", f"{dotted(finding.path) or 'the project'}: {inner}", finding.location.help)


def _wrong_value(findings: Sequence[_Finding]) -> ProjectError:
    first = findings[0]
    descriptions = list(dict.fromkeys(describe_expected(finding.detail) for finding in findings))
    code = "wrong-type" if all(is_about_type(finding.detail) for finding in findings) else "bad-value"
    message = (
        f"{dotted(first.path) or 'the project'}: expected {' or '.join(descriptions)}, found {first.shown_value()}"
    )
    return first.error(code, message, _hint(findings))


def _hint(findings: Sequence[_Finding]) -> str | None:
    first = findings[0]
    value = first.detail.get("input")
    if isinstance(value, bool) and any(finding.detail["type"] == "string_type" for finding in findings):
        return "YAML reads yes, no, on, off, true and false as booleans: put the text in quotes"
    options = [option for finding in findings for option in finding.location.choices(finding.detail)]
    guess = nearest(str(value), options) if options else None
    parts = [f"did you mean '{guess}'?" if guess else "", first.location.help or ""]
    return " ".join(part for part in parts if part) or None
