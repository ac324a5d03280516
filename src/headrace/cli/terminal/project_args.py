"""The arguments that name a project and its flows, the same for every command.

    @project_options(Names)
    def late(target: ProjectTarget, json: Json = False) -> None:
        project = target.load()

gives the command `PROJECT|FLOW…`, `--project`, `--profile` and `--set`, and passes them as `target`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer

from headrace.cli.terminal.completion import complete_flows, complete_profiles
from headrace.cli.terminal.output import printer, usage_error
from headrace.core.errors import unknown_flow
from headrace.core.runtime.lazy import lazy_modules

if TYPE_CHECKING:
    from headrace.engine.state import state
    from headrace.engine.state.state import StateDir
    from headrace.project import loader, locate, project_ref
    from headrace.project.loader import Project
    from headrace.project.locate import ProjectOutline
    from headrace.project.project_ref import ProjectRef
else:
    loader, locate, project_ref, state = lazy_modules(
        "headrace.project.loader",
        "headrace.project.locate",
        "headrace.project.project_ref",
        "headrace.engine.state.state",
    )

PROJECT_FILE = "headrace.yaml"
_CAN_BE_A_FLOW = re.compile(r"[a-z][a-z0-9_]*")

Name = Annotated[
    str | None, typer.Argument(metavar="PROJECT", help="Folder or file of the project; the current folder otherwise.")
]
Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PROJECT|FLOW",
        help="Folder or file of the project (the current folder otherwise), then flows (all otherwise).",
        autocompletion=complete_flows,
    ),
]
OneFlow = Annotated[
    list[str] | None,
    typer.Argument(metavar="[PROJECT] FLOW", help="The flow, after its project.", autocompletion=complete_flows),
]
ProjectOption = Annotated[
    Path | None, typer.Option("--project", "-p", metavar="DIR", help="The project; then all arguments are flows.")
]
Profile = Annotated[
    str | None,
    typer.Option(
        "--profile", metavar="NAME", help="Apply this profile to the project file.", autocompletion=complete_profiles
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=VALUE", help="Set one value of the project file; may be repeated."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, also errors (on stderr).")]


@dataclass(frozen=True)
class ProjectTarget:
    """The project of a command, and the named flows."""

    path: Path
    flows: tuple[str, ...] = ()
    profile: str | None = None
    overrides: tuple[str, ...] = ()
    is_named: bool = True
    """False when no project was named, so that the current folder is used."""

    def load(self) -> Project:
        """Load and check the project. The printer hides its secrets from now on."""
        project = loader.load(self.path, profile=self.profile, overrides=self.overrides)
        printer.hide(project.secrets.redact)
        return project

    def outline(self) -> ProjectOutline:
        """Return the state folder and flow names, without checking the rest. Raises `unknown-flow` for a wrong flow."""
        outline = locate.locate(self.path, profile=self.profile, overrides=self.overrides)
        for name in self.flows:
            if name not in outline.flows:
                raise unknown_flow(name, outline.flows)
        return outline

    def state(self) -> StateDir:
        """Return the state folder. Raises `unknown-flow` for a wrong flow."""
        return state.StateDir.of(self.outline().context)

    def open(self) -> tuple[Project, StateDir]:
        """Load and check the project; return it with its state folder."""
        project = self.load()
        return project, state.StateDir.of(project.context)

    def flow(self) -> str | None:
        """Return the named flow; None for all. Raises a usage error for several flows."""
        if len(self.flows) > 1:
            raise usage_error(f"one flow at most, not {len(self.flows)}", "leave out the others, or all of them")
        return self.flows[0] if self.flows else None

    def ref(self) -> ProjectRef:
        """Return the reference with which another process loads the same project."""
        return project_ref.ProjectRef(self.path, self.profile, self.overrides)


def project_options(positional: Any = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the arguments that name a project to a command, which takes them as `target`.

    `positional` is the positional argument: `Name` (a project), `Names` (a project, then flows), another annotation of
    a list, or None.
    """
    shared: dict[str, Any] = {"project": ProjectOption, "profile": Profile, "overrides": Overrides}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)
        own = {
            name: parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
            for name, parameter in inspect.signature(command).parameters.items()
            if name != "target"
        }
        naming = {} if positional is None else {"names": _parameter("names", positional)}
        naming |= {name: _parameter(name, annotation) for name, annotation in shared.items()}
        # in the order of the help: the argument, the command's own options, those that name the project, --json
        order = sorted({**own, **naming}.values(), key=_in_help)

        @wraps(command)
        def run(**values: Any) -> None:
            command(_target(positional, **{name: values.pop(name) for name in naming}), **values)

        run.__signature__ = inspect.Signature(order)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in order}
        return run

    return decorate


def _in_help(parameter: inspect.Parameter) -> tuple[bool, bool, bool]:
    name = parameter.name
    return name != "names", name == "json", name in ("project", "profile", "overrides")


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    is_optional = type(None) in get_args(annotation.__origin__)
    default = None if is_optional else inspect.Parameter.empty
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _target(
    positional: Any,
    project: Path | None,
    profile: str | None,
    overrides: Sequence[str] | None,
    names: Any = None,
) -> ProjectTarget:
    path, flows = (_only_project(names, project), ()) if positional is Name else split(names, project)
    is_named = project is not None or path != Path(".") or names == "."
    return ProjectTarget(path, flows, profile, tuple(overrides or ()), is_named)


def split(names: Sequence[str] | None, option: Path | None) -> tuple[Path, tuple[str, ...]]:
    """Split arguments into the project and the flows."""
    arguments = tuple(names or ())
    if option is not None:
        return option, arguments
    if arguments and _is_project(arguments[0]):
        return Path(arguments[0]), arguments[1:]
    return Path("."), arguments


def _is_project(name: str) -> bool:
    """Return whether the first argument is a project. Inside a project, a folder may have the name of a flow."""
    if not _CAN_BE_A_FLOW.fullmatch(name):
        return True
    return (Path(name) / PROJECT_FILE).is_file() or (Path(name).is_dir() and not Path(PROJECT_FILE).is_file())


def _only_project(name: str | None, option: Path | None) -> Path:
    """Return the project of a command that takes no flows."""
    if name is not None and option is not None:
        raise usage_error(f"two projects were named: '{name}' and '{option}'", "leave one of them out")
    return Path(name) if name is not None else option or Path(".")
