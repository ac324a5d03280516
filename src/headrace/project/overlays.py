"""Overlays of a project file, applied before it is checked: includes, a profile, `--set`, variables, named sinks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.core.errors import Exit, Origin, ProjectError, did_you_mean
from headrace.core.kinds import kinds
from headrace.project.variables import Secrets, Variables
from headrace.project.yaml_tree import Path_, Tree, load_tree, merge, parse_value, subtree

_RELATIVE = "check the path; it is relative to the project's folder"
_KEY_PART = re.compile(r'"([^"]+)"|([^."]+)')


def with_includes(tree: Tree, file: Path, errors: list[ProjectError]) -> Tree:
    root = file.parent
    patterns = tree.data.get("include", [])
    for index, pattern in enumerate(patterns if isinstance(patterns, list) else []):
        where = tree.origin(("include", index))
        try:
            files = [path for path in _matching(root, str(pattern)) if path.resolve() != file.resolve()]
            for included in files:
                tree = _include(tree, load_tree(included, included.relative_to(root).as_posix(), errors), errors)
        except ProjectError as error:
            errors.append(error.at(where))
    return tree


def _matching(root: Path, pattern: str) -> list[Path]:
    if not pattern or pattern.startswith("/") or "${" in pattern:
        message = f"include '{pattern}' is not a path or glob below the project's folder"
        raise ProjectError("bad-value", message, hint="write e.g. streams/*.yaml, without variables")
    try:
        files = sorted(file for file in root.glob(pattern) if file.is_file())
    except (ValueError, IndexError, NotImplementedError):  # Python's errors for "." and "**a"
        files = []
    if not files:
        raise ProjectError("missing-file", f"include '{pattern}' matches no file", hint=_RELATIVE)
    return files


def _include(tree: Tree, included: Tree, errors: list[ProjectError]) -> Tree:
    if "include" in included.data:
        where = included.origin(("include",))
        hint = "list all files in the project file"
        errors.append(ProjectError("nested-include", "an included file cannot include more", where=where, hint=hint))
        included = Tree({k: v for k, v in included.data.items() if k != "include"}, included.origins)
    for path in _repeated(tree.data, included.data):
        message = f"{'.'.join(map(str, path))} is written twice (first in {_place(tree, path)})"
        errors.append(ProjectError("duplicate-key", message, where=included.origin(path), hint="keep one of them"))
    return merge(tree, included)


def _repeated(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Path_]:
    """Names that both files set: within sections, or sections that are values themselves."""
    repeated: list[Path_] = []
    for section, entries in second.items():
        present = first.get(section)
        if section == "profiles" and isinstance(present, dict) and isinstance(entries, dict):
            repeated.extend(_repeated_in_profiles(present, entries))
        elif isinstance(present, dict) and isinstance(entries, dict):
            repeated.extend((section, name) for name in sorted(set(present) & set(entries)))
        elif present is not None and entries is not None:
            repeated.append((section,))
    return repeated


def _repeated_in_profiles(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Path_]:
    """Each file may add its own streams and flows to one profile."""
    return [
        ("profiles", name, *path)
        for name in sorted(set(first) & set(second))
        if isinstance(first[name], dict) and isinstance(second[name], dict)
        for path in _repeated(first[name], second[name])
    ]


def _place(tree: Tree, path: Path_) -> str:
    origin = tree.origin(path)
    return "?" if origin is None else str(Origin(origin.file, origin.line))


def with_profile(tree: Tree, profile: str | None) -> Tree:
    if profile is None:
        return tree
    section = tree.data.get("profiles")
    profiles = section if isinstance(section, dict) else {}
    if profile not in profiles:
        raise ProjectError(
            "unknown-profile",
            f"there is no profile '{profile}'",
            where=tree.origin(("profiles",)),
            hint=did_you_mean(profile, profiles, "profiles"),
            exit_code=Exit.NOT_FOUND,
        )
    return merge(tree, subtree(tree, ("profiles", profile)), at=("profiles", profile))


def with_override(tree: Tree, text: str) -> Tree:
    """Apply one `--set a.b=value`. A part that contains dots is quoted: `spark.conf."spark.ui.port"=4040`."""
    key, separator, value = text.partition("=")
    parts = [quoted or plain for quoted, plain in _KEY_PART.findall(key)]
    if not separator or not parts or ".".join(parts) != key.replace('"', ""):
        raise ProjectError(
            "bad-override",
            f"'--set {key}' is not of the form a.b=value",
            hint="for example --set spark.memory=2g",
            exit_code=Exit.USAGE,
        )
    origin = Origin(f"--set {key}", None)
    try:
        data: Any = parse_value(value, "its value") if value else ""
    except ProjectError as error:
        message = f"--set {key}: {error.message}"
        hint = "put the value in quotes: --set 'a.b=\"x: y\"'"
        raise ProjectError("bad-override", message, hint=hint, exit_code=Exit.USAGE) from None
    for part in reversed(parts):
        data = {part: data}
    return merge(tree, Tree(data, {tuple(parts[:n]): origin for n in range(len(parts) + 1)}))


def with_variables(
    tree: Tree, root: Path, secrets: Secrets, environment: Mapping[str, str], errors: list[ProjectError]
) -> Tree:
    """Replace all `${…}` by their values. Profiles stay unchanged: the selected one is already applied."""
    declared, files = tree.data.get("variables"), tree.data.get("secrets")
    secret_files = files if isinstance(files, dict) else {}
    # variables may refer to the environment and secrets, not to each other
    environment_only = Variables({}, secret_files, root, secrets, environment)
    own_variables = environment_only.fill(
        Tree({"variables": declared if isinstance(declared, dict) else {}}, tree.origins), errors
    )
    variables = Variables(own_variables.data["variables"], secret_files, root, secrets, environment)
    choices = tree.data.get("choices")
    wrong = variables.disallowed(choices if isinstance(choices, dict) else {})
    errors.extend(error.at(tree.origin(("variables", name))) for name, error in wrong)
    unfilled = {key: value for key, value in tree.data.items() if key in ("profiles", "variables")}
    rest = {key: value for key, value in tree.data.items() if key not in unfilled}
    filled = variables.fill(Tree(rest, tree.origins), errors)
    return Tree({key: filled.data.get(key, value) for key, value in tree.data.items()}, tree.origins)


def with_named_sinks(tree: Tree, errors: list[ProjectError]) -> tuple[Tree, set[Path_]]:
    """Replace names of sinks in flows by their definitions; also returns the paths of those names.

    Errors of a named sink are reported once, where it is defined.
    """
    flows, section = tree.data.get("flows"), tree.data.get("sinks")
    named = section if isinstance(section, dict) else {}
    if not isinstance(flows, dict):
        return tree, set()
    replaced: dict[str, Any] = {}
    names: set[Path_] = set()
    for flow, body in flows.items():
        sinks = body.get("sinks") if isinstance(body, dict) else None
        listed = [sinks] if isinstance(sinks, str | dict) else sinks
        if not isinstance(listed, list):
            replaced[flow] = body
            continue
        for index, sink in enumerate(listed):
            if isinstance(sink, str) and (sink in named or sink not in kinds("sinks")):
                names.add(("flows", flow, "sinks", index))
                if sink not in named:
                    errors.append(_unknown_sink(tree, flow, index, sink, [*named, *kinds("sinks")]))
        resolved = [named.get(sink, sink) if isinstance(sink, str) else sink for sink in listed]
        replaced[flow] = {**body, "sinks": resolved}
    return Tree({**tree.data, "flows": replaced}, tree.origins), names


def _unknown_sink(tree: Tree, flow: str, index: int, sink: str, known: list[str]) -> ProjectError:
    where = tree.origin(("flows", flow, "sinks", index))
    hint = did_you_mean(sink, known, "sinks and types")
    return ProjectError("unknown-sink", f"flow '{flow}' uses the unknown sink '{sink}'", where=where, hint=hint)
