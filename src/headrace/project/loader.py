"""From a folder to a Project: read, overlay, fill in, check. All errors of a project at once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from headrace.core.context import Context
from headrace.core.errors import Origin, ProjectError, ProjectErrors, did_you_mean
from headrace.project.locate import find_file
from headrace.project.model import ProjectSpec
from headrace.project.overlays import with_includes, with_named_sinks, with_override, with_profile, with_variables
from headrace.project.problems import in_file_order, problems_of
from headrace.project.variables import Secrets, names_in
from headrace.project.yaml_tree import Path_, TextOrigin, Tree, load_tree, parse_tree


@dataclass(frozen=True)
class Project:
    """A checked project, and where each of its values was written."""

    root: Path
    spec: ProjectSpec
    tree: Tree
    secrets: Secrets
    profile: str | None = None
    written: Mapping[str, Any] = field(default_factory=dict)
    """The file with what was laid over it, before variables were filled in; {} when it was not made from a file."""

    @property
    def context(self) -> Context:
        """What components may know about the project."""
        context = Context(self.root, "")
        log, topics = self.spec.serve.log, self.spec.serve.topics
        return Context(
            self.root,
            context.path(self.spec.state),
            store=self.spec.object_store,
            log=None if log is None else context.path(log),
            log_topics=None if topics is None else topics.reached(context),
        )

    def origin(self, *path: str | int) -> Origin | None:
        """Where the value at this path was written."""
        return self.tree.origin(path)

    def sql_of(self, name: str) -> str:
        """The SQL text of a flow, wherever it is kept."""
        flow = self.spec.flows[name]
        if flow.sql is not None:
            return flow.sql
        return (self.root / str(flow.sql_file)).read_text(encoding="utf-8-sig")  # some editors begin with a mark

    def definition(self) -> str | None:
        """The project in one YAML text that `defined_by` can load later, whatever becomes of its files.

        Variables and secrets are still references, so no secret is in it; SQL files are. None when it has no file.
        """
        if not self.written:
            return None
        data = {key: value for key, value in self.written.items() if key not in ("include", "profiles")}
        flows = {name: self._with_sql(name, body) for name, body in (data.get("flows") or {}).items()}
        return yaml.safe_dump({**data, "flows": flows}, sort_keys=False, allow_unicode=True)

    def _with_sql(self, name: str, body: Any) -> Any:
        if not isinstance(body, dict) or "sql_file" not in body:
            return body
        # files are taken as they are; in a value a dollar sign may begin a reference
        text = self.sql_of(name).replace("$", "$$")
        return {**{key: value for key, value in body.items() if key != "sql_file"}, "sql": text}

    def sql_origin(self, name: str, line: int, offset: int | None = None) -> Origin | None:
        """Where line `line` (from 1) of a flow's SQL is. The offset (from 0) helps where YAML folds lines."""
        flow = self.spec.flows[name]
        if flow.sql_file is not None:
            return Origin(flow.sql_file, line, f"flows.{name}")
        written = self.tree.origins.get(("flows", name, "sql"))
        place = f"flows.{name}.sql, line {line}"
        if isinstance(written, TextOrigin):
            return Origin(written.file, written.line_in_file(flow.sql or "", line, offset), place)
        return Origin(written.file, written.line, place) if written is not None else self.origin("flows", name, "sql")


def load(
    path: Path | str,
    *,
    profile: str | None = None,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Project:
    """The project at `path`; ProjectErrors lists everything that is wrong with it."""
    file = find_file(Path(path)).absolute()
    errors: list[ProjectError] = []
    tree = with_includes(load_tree(file, file.name, errors), file, errors)
    errors.extend(_unknown_profile_keys(tree, profile))
    tree = with_profile(tree, profile)
    for override in overrides:
        tree = with_override(tree, override)
    errors.extend(_unused_variables(tree, overrides))
    secrets, outside = Secrets(), os.environ if environment is None else environment
    project, tree = _build(tree, file.parent, profile, outside, secrets, errors)
    if project is not None:
        errors.extend([*_unreadable_sql_files(project), *_name_clashes(project)])
    if project is None or errors:
        raise ProjectErrors([_without_secrets(secrets, error) for error in in_file_order(errors, tree)])
    return project


def load_definition(project: Project, text: str, shown: str, environment: Mapping[str, str] | None = None) -> Project:
    """The project as an earlier `definition` has it: its streams, flows and sinks. Where and how it runs is that of
    `project`, and so are the files that it names, except SQL files."""
    errors: list[ProjectError] = []
    secrets, outside = Secrets(), os.environ if environment is None else environment
    made, tree = _build(parse_tree(text, shown, errors), project.root, None, outside, secrets, errors)
    if made is None or errors:
        raise ProjectErrors([_without_secrets(secrets, error) for error in in_file_order(errors, tree)])
    now = project.spec
    place = {"project": now.project, "spark": now.spark, "restart": now.restart, "http": now.http, "state": now.state}
    project.secrets.values.update(made.secrets.values)
    return replace(made, spec=made.spec.model_copy(update=place), secrets=project.secrets, profile=project.profile)


def _build(
    tree: Tree,
    root: Path,
    profile: str | None,
    environment: Mapping[str, str],
    secrets: Secrets,
    errors: list[ProjectError],
) -> tuple[Project | None, Tree]:
    """The project of a tree in which only variables are still to be filled in, and the tree that it was made from."""
    written = tree.data
    unfilled: list[ProjectError] = []
    tree = with_variables(tree, root, secrets, environment, unfilled)
    errors.extend(unfilled)
    tree, named_sinks = with_named_sinks(_without_empty_sections(tree), errors)
    spec = _validated(tree, secrets, named_sinks, {error.where for error in unfilled}, errors)
    return None if spec is None else Project(root, spec, tree, secrets, profile, written), tree


def _validated(
    tree: Tree, secrets: Secrets, named_sinks: set[Path_], unfilled: set[Origin | None], errors: list[ProjectError]
) -> ProjectSpec | None:
    """The values, typed; what is wrong with them is added to `errors`, except where a reference has no value."""
    try:
        return ProjectSpec.model_validate(tree.data)
    except ValidationError as error:
        found = problems_of(error, tree, secrets=secrets, elsewhere=named_sinks)
        errors.extend(one for one in found if one.where not in unfilled)
    except ProjectError as error:  # a kind's own check, which does not know where it is written
        errors.append(error)
    return None


def _without_secrets(secrets: Secrets, error: ProjectError) -> ProjectError:
    """The error as it may be shown: also checks that name what they were given may have been given a secret."""
    error.message = secrets.redact(error.message)
    error.hint = None if error.hint is None else secrets.redact(error.hint)
    return error


def _without_empty_sections(tree: Tree) -> Tree:
    """`streams:` with nothing below it is the same as no `streams:`; `streems:` is still unknown."""
    known = ProjectSpec.model_fields
    kept = {key: value for key, value in tree.data.items() if value is not None or key not in known}
    return Tree(kept, tree.origins)


def _unknown_profile_keys(tree: Tree, in_use: str | None) -> Iterator[ProjectError]:
    """A profile that is not in use is checked too, as far as its sections go."""
    profiles = tree.data.get("profiles")
    for name, body in profiles.items() if isinstance(profiles, dict) else ():
        for key in body if isinstance(body, dict) and name != in_use else ():
            if key not in ProjectSpec.model_fields:
                yield ProjectError(
                    "unknown-key",
                    f"unknown key '{key}' in profiles.{name}",
                    where=tree.origin(("profiles", name, key)),
                    hint=did_you_mean(key, ProjectSpec.model_fields, "keys"),
                )


def _unused_variables(tree: Tree, overrides: Sequence[str]) -> Iterator[ProjectError]:
    """A misspelt `--set variables.NAME=…` would change nothing, and nobody would know."""
    paths = [override.partition("=")[0].strip().split(".", 1) for override in overrides]
    names = {path[1] for path in paths if len(path) == 2 and path[0] == "variables"}
    used = names_in(tree.data) if names else set()
    for name in sorted(names - used):
        yield ProjectError(
            "unknown-variable",
            f"nothing in the project refers to variable '{name}'",
            where=tree.origin(("variables", name)),
            hint=did_you_mean(name, used, "variables"),
        )


def _unreadable_sql_files(project: Project) -> Iterator[ProjectError]:
    for name, flow in project.spec.flows.items():
        if flow.sql_file is None:
            continue
        where = project.origin("flows", name, "sql_file")
        if not (project.root / flow.sql_file).is_file():
            hint = "check the path; it is relative to the project's folder"
            yield ProjectError("missing-file", f"there is no file '{flow.sql_file}'", where=where, hint=hint)
            continue
        try:
            project.sql_of(name)
        except (OSError, UnicodeDecodeError):
            hint = "make it readable and save it as UTF-8"
            yield ProjectError("file-unreadable", f"'{flow.sql_file}' is not readable text", where=where, hint=hint)


def _name_clashes(project: Project) -> Iterator[ProjectError]:
    spec = project.spec
    named = {"stream": list(spec.streams), "table": list(spec.tables), "flow": list(spec.flows)}
    met: dict[str, str] = {}
    for kind, name in ((kind, name) for kind, names in named.items() for name in sorted(names)):
        if name in met:
            yield ProjectError(
                "duplicate-name",
                f"'{name}' is both a {met[name]} and a {kind}",
                where=project.origin(f"{kind}s", name),
                hint="SQL could not tell them apart: rename one of them",
            )
        met.setdefault(name, kind)
