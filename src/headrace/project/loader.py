"""Loads a project: read, overlay, fill in variables, check. Reports all errors at once."""

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
    """A checked project and the origin of each of its values."""

    root: Path
    spec: ProjectSpec
    tree: Tree
    secrets: Secrets
    profile: str | None = None
    written: Mapping[str, Any] = field(default_factory=dict)
    """The file with overlays, before variables are filled in; {} if the project is not from a file."""

    @property
    def context(self) -> Context:
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
        """The file and line of the value at this path."""
        return self.tree.origin(path)

    def sql_of(self, name: str) -> str:
        """The SQL of a flow, inline or from its file."""
        flow = self.spec.flows[name]
        if flow.sql is not None:
            return flow.sql
        return (self.root / str(flow.sql_file)).read_text(encoding="utf-8-sig")  # some editors write a byte order mark

    def definition(self) -> str | None:
        """The project as one YAML text for `load_stored_definition`, independent of later changes to its files.

        Variables and secrets stay references, so it contains no secret; SQL files are inlined. None without a file.
        """
        if not self.written:
            return None
        data = {key: value for key, value in self.written.items() if key not in ("include", "profiles")}
        flows = {name: self._with_sql(name, body) for name, body in (data.get("flows") or {}).items()}
        return yaml.safe_dump({**data, "flows": flows}, sort_keys=False, allow_unicode=True)

    def _with_sql(self, name: str, body: Any) -> Any:
        if not isinstance(body, dict) or "sql_file" not in body:
            return body
        # in a file a dollar sign is literal; in a value it may start a reference
        text = self.sql_of(name).replace("$", "$$")
        return {**{key: value for key, value in body.items() if key != "sql_file"}, "sql": text}

    def sql_origin(self, name: str, line: int, offset: int | None = None) -> Origin | None:
        """The origin of line `line` (from 1) of a flow's SQL. The offset (from 0) helps where YAML folds lines."""
        flow = self.spec.flows[name]
        if flow.sql_file is not None:
            return Origin(flow.sql_file, line, f"flows.{name}")
        origin = self.tree.origins.get(("flows", name, "sql"))
        place = f"flows.{name}.sql, line {line}"
        if isinstance(origin, TextOrigin):
            return Origin(origin.file, origin.line_in_file(flow.sql or "", line, offset), place)
        return Origin(origin.file, origin.line, place) if origin is not None else self.origin("flows", name, "sql")


def load(
    path: Path | str,
    *,
    profile: str | None = None,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Project:
    """Load the project at `path`, a folder or a project file. Raises ProjectErrors with all its errors."""
    file = find_file(Path(path)).absolute()
    errors: list[ProjectError] = []
    tree = with_includes(load_tree(file, file.name, errors), file, errors)
    errors.extend(_unknown_profile_keys(tree, profile))
    tree = with_profile(tree, profile)
    for override in overrides:
        tree = with_override(tree, override)
    errors.extend(_unused_variables(tree, overrides))
    secrets, variables = Secrets(), os.environ if environment is None else environment
    project, tree = _build(tree, file.parent, profile, variables, secrets, errors)
    if project is not None:
        errors.extend([*_unreadable_sql_files(project), *_name_clashes(project)])
    if project is None or errors:
        raise ProjectErrors([_without_secrets(secrets, error) for error in in_file_order(errors, tree)])
    return project


def load_stored_definition(
    project: Project, text: str, shown: str, environment: Mapping[str, str] | None = None
) -> Project:
    """The project of an earlier `definition`: its streams, flows and sinks. Where and how it runs, and all files except
    SQL files, are those of `project`."""
    errors: list[ProjectError] = []
    secrets, variables = Secrets(), os.environ if environment is None else environment
    earlier, tree = _build(parse_tree(text, shown, errors), project.root, None, variables, secrets, errors)
    if earlier is None or errors:
        raise ProjectErrors([_without_secrets(secrets, error) for error in in_file_order(errors, tree)])
    current = project.spec
    settings = {
        "project": current.project,
        "spark": current.spark,
        "restart": current.restart,
        "http": current.http,
        "state": current.state,
    }
    project.secrets.values.update(earlier.secrets.values)
    return replace(
        earlier, spec=earlier.spec.model_copy(update=settings), secrets=project.secrets, profile=project.profile
    )


def _build(
    tree: Tree,
    root: Path,
    profile: str | None,
    environment: Mapping[str, str],
    secrets: Secrets,
    errors: list[ProjectError],
) -> tuple[Project | None, Tree]:
    """The project of a tree after filling in variables, and the final tree."""
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
    """The typed values; errors are added to `errors`, except where a reference has no value."""
    try:
        return ProjectSpec.model_validate(tree.data)
    except ValidationError as error:
        problems = problems_of(error, tree, secrets=secrets, elsewhere=named_sinks)
        errors.extend(problem for problem in problems if problem.where not in unfilled)
    except ProjectError as error:  # a check of a kind, which does not know its origin
        errors.append(error)
    return None


def _without_secrets(secrets: Secrets, error: ProjectError) -> ProjectError:
    """The error with secrets redacted: a check may quote a secret value."""
    error.message = secrets.redact(error.message)
    error.hint = None if error.hint is None else secrets.redact(error.hint)
    return error


def _without_empty_sections(tree: Tree) -> Tree:
    """An empty `streams:` is the same as no `streams:`; `streems:` is still unknown."""
    fields = ProjectSpec.model_fields
    sections = {key: value for key, value in tree.data.items() if value is not None or key not in fields}
    return Tree(sections, tree.origins)


def _unknown_profile_keys(tree: Tree, in_use: str | None) -> Iterator[ProjectError]:
    """Checks the section names of profiles that are not selected."""
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
    """Errors for `--set variables.NAME=…` of an unused variable: a misspelt one would have no effect."""
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
    kind_of: dict[str, str] = {}
    for kind, name in ((kind, name) for kind, names in named.items() for name in sorted(names)):
        if name in kind_of:
            yield ProjectError(
                "duplicate-name",
                f"'{name}' is both a {kind_of[name]} and a {kind}",
                where=project.origin(f"{kind}s", name),
                hint="the name is ambiguous in SQL: rename one of them",
            )
        kind_of.setdefault(name, kind)
