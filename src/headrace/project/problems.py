"""Validation errors in the words of the project file: code, place, nearest name."""

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
_SECRETIVE = ("password", "secret", "token", "passphrase", "pem", "jaas")


def problems_of(
    error: ValidationError,
    tree: Tree,
    model: type[BaseModel] = ProjectSpec,
    *,
    secrets: Secrets | None = None,
    elsewhere: Collection[Path_] = (),
) -> list[ProjectError]:
    """One ProjectError per finding, in file order, without those at paths that are reported `elsewhere`."""
    grouped: dict[Path_, list[_Finding]] = {}
    for detail in error.errors(include_url=False):
        finding = _Finding(detail, error_location(detail, tree.data, model), tree, secrets or Secrets())
        if not any(finding.path[: len(path)] == path for path in elsewhere):
            grouped.setdefault(finding.path, []).append(finding)
    return in_file_order([_problem(findings) for findings in grouped.values()], tree)


def in_file_order(errors: Sequence[ProjectError], tree: Tree) -> list[ProjectError]:
    """The errors as one meets them reading: the project file from top to bottom, then the files it includes."""
    files = list(dict.fromkeys(origin.file for path, origin in sorted(tree.origins.items(), key=lambda o: len(o[0]))))

    def place(error: ProjectError) -> tuple[int, int]:
        where = error.where
        if where is None or where.file not in files:
            return len(files), 0
        return files.index(where.file), where.line or 0

    return sorted(errors, key=place)


@dataclass(frozen=True)
class _Finding:
    """One of pydantic's errors, and the place in the file it is about."""

    detail: Any
    spot: ErrorLocation
    tree: Tree
    secrets: Secrets

    @property
    def path(self) -> Path_:
        return self.spot.path

    @property
    def name(self) -> str:
        return str(self.path[-1]) if self.path else ""

    @property
    def parent(self) -> str:
        return dotted(self.path[:-1]) or "the project"

    def error(self, code: str, message: str, hint: str | None) -> ProjectError:
        shown = None if hint is None else self.secrets.redact(hint)
        return ProjectError(code, self.secrets.redact(message), where=self.tree.origin(self.path), hint=shown)

    def given(self) -> str:
        """What stands in the file, unless it may be a secret."""
        value = self.detail.get("input")
        hidden = any(word in str(part).lower() for part in self.path for word in _SECRETIVE)
        hidden = hidden or any(secret in str(value) for secret in self.secrets.values)
        return "a hidden value" if hidden and isinstance(value, str | int | float) else describe_value(value)


def _problem(findings: Sequence[_Finding]) -> ProjectError:
    """The error for all findings at one place: several are the alternatives of one value."""
    first = findings[0]
    match first.detail["type"]:
        case "extra_forbidden":
            hint = did_you_mean(first.name, first.spot.siblings, "keys")
            return first.error("unknown-key", f"unknown key '{first.name}' in {first.parent}", hint)
        case "missing" if first.path and isinstance(first.path[-1], int):
            parent = dotted(first.path[:-1])
            return first.error("bad-value", f"{parent}: a value is missing after the first", first.spot.help)
        case "missing":
            return first.error("missing-key", f"{first.parent} needs the key '{first.name}'", first.spot.help)
        case "union_tag_not_found":
            hint = did_you_mean("", kinds(first.spot.family), "types")
            return first.error("missing-key", f"{dotted(first.path)} needs the key 'type'", hint)
        case "union_tag_invalid":
            tag = str(first.detail["ctx"]["tag"])
            hint = did_you_mean(tag, kinds(first.spot.family), "types")
            return first.error("unknown-kind", f"unknown type '{tag}' in {dotted(first.path)}", hint)
        case "value_error" | "assertion_error" if len(findings) == 1:
            return _own_check(first)
        case str() as code if "-" in code:  # a kind's own check that names its code
            return first.error(code, f"{dotted(first.path) or 'the project'}: {first.detail['msg']}", first.spot.help)
    if "[key]" in first.detail["loc"] or first.path == ("project",):
        return first.error("bad-name", f"{first.given()} is not a name for {_thing(first.path)}", _NAME_HINT)
    return _wrong_value(findings)


def _thing(path: Path_) -> str:
    section = str(path[0])
    return f"a {section.removesuffix('s')}"


def _own_check(finding: _Finding) -> ProjectError:
    """A check that a model makes itself, in its own words."""
    inner = finding.detail["ctx"]["error"]
    if isinstance(inner, ProjectError):
        return finding.error(inner.code, f"{dotted(finding.path)}: {inner.message}", inner.hint or finding.spot.help)
    return finding.error("bad-value", f"{dotted(finding.path) or 'the project'}: {inner}", finding.spot.help)


def _wrong_value(findings: Sequence[_Finding]) -> ProjectError:
    first = findings[0]
    wanted = list(dict.fromkeys(describe_expected(finding.detail) for finding in findings))
    code = "wrong-type" if all(is_about_type(finding.detail) for finding in findings) else "bad-value"
    message = f"{dotted(first.path) or 'the project'}: expected {' or '.join(wanted)}, found {first.given()}"
    return first.error(code, message, _hint(findings))


def _hint(findings: Sequence[_Finding]) -> str | None:
    first = findings[0]
    value = first.detail.get("input")
    if isinstance(value, bool) and any(finding.detail["type"] == "string_type" for finding in findings):
        return "YAML reads yes, no, on, off, true and false as booleans: put the text in quotes"
    options = [option for finding in findings for option in finding.spot.choices(finding.detail)]
    guess = nearest(str(value), options) if options else None
    parts = [f"did you mean '{guess}'?" if guess else "", first.spot.help or ""]
    return " ".join(part for part in parts if part) or None
