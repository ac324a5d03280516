"""The `headrace` command: finds the commands and turns their errors into output.

A command's module is imported when the command is called, so `--help` needs neither Spark nor a project.
"""

from __future__ import annotations

import errno
import importlib
import importlib.util
import os
import pkgutil
import select
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from headrace import __version__
from headrace.cli.terminal.output import never_fail_on_a_character, printer, usage_error
from headrace.core.errors import Exit, ProjectError, did_you_mean
from headrace.core.files.objects import StoreError

_PROGRAM = "headrace"
_STDOUT, _STDERR = 1, 2
_NO_PERMISSION = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NO_PATH = (errno.ENAMETOOLONG, errno.ELOOP)


SECTIONS = {"Projects": "projects", "Operations": "operations", "Data": "data", "Environment": "environment"}
"""The sections of the help. A section is a package, and a command is a module in it: see `Command`."""


@dataclass(frozen=True)
class Command:
    """A module of a section. Its name is the command's, the first line of its docstring is the line in the help.

    It has a function of the command's name, or a Typer `app` with subcommands. Modules with a leading underscore are
    helpers.
    """

    name: str
    module: str

    @property
    def help(self) -> str:
        """The line in the help, read without importing the module."""
        loader: Any = importlib.util.find_spec(self.module).loader  # type: ignore[union-attr]
        return str(loader.get_source(self.module)).partition("\n")[0].strip('"')

    def load(self) -> Any:
        """The command itself, for Click."""
        module = importlib.import_module(self.module)
        if hasattr(module, "app"):
            group = typer.main.get_group(module.app)
            group.no_args_is_help = False  # a missing subcommand is a usage error like any other
            return group
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(self.name)(getattr(module, self.name))
        return typer.main.get_command(single)


@cache
def commands(section: str) -> dict[str, Command]:
    package = f"headrace.cli.{SECTIONS[section]}"
    names = [module.name for module in pkgutil.iter_modules(importlib.import_module(package).__path__)]
    section_commands = [
        Command(name.replace("_", "-"), f"{package}.{name}") for name in names if not name.startswith("_")
    ]
    return {command.name: command for command in section_commands}


def all_commands() -> dict[str, Command]:
    """All commands by name, in the order of the help."""
    return {name: command for section in SECTIONS for name, command in commands(section).items()}


class CommandGroup(TyperGroup):
    """The commands of all sections. Only the one that is called is imported."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(all_commands())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        known = all_commands()
        if cmd_name in known:
            return known[cmd_name].load()
        if ctx.resilient_parsing:  # the shell completes an unfinished line
            return None
        raise usage_error(f"command '{cmd_name}' does not exist", did_you_mean(cmd_name, known, "commands"))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for section in SECTIONS:
            with formatter.section(section):
                formatter.write_dl([(name, command.help) for name, command in commands(section).items()], col_max=12)


app = typer.Typer(cls=CommandGroup, rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]})


def _print_version(enabled: bool) -> None:
    if enabled:
        printer.data(f"{_PROGRAM} {__version__}")
        raise typer.Exit


_Version = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
]


@app.callback(invoke_without_command=True)
def _headrace(
    context: typer.Context,
    _version: _Version = False,
) -> None:
    """Streams, tables, SQL and endpoints in one project file, run by Apache Spark."""
    if context.invoked_subcommand is None:
        printer.data(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. The only place that turns errors into output."""
    arguments_ = list(sys.argv[1:] if arguments is None else arguments)
    printer.begin(json_errors="--json" in arguments_)
    _reopen_closed_streams()
    never_fail_on_a_character()
    try:
        _run(arguments_)
        sys.stdout.flush()
        return Exit.OK
    except typer.Exit as request:
        return request.exit_code
    except ProjectError as error:
        printer.error(error)
        return error.exit_code
    except StoreError as error:
        printer.error(_as_unreachable(error))
        return Exit.TRANSIENT
    except typer.TyperException as error:
        printer.error(_as_usage_error(error))
        return Exit.USAGE
    except (KeyboardInterrupt, typer.Abort):
        return Exit.INTERRUPTED
    except Exception as error:  # the last resort: the user must learn that the fault is ours
        if isinstance(error, BrokenPipeError) and _stdout_has_no_reader():
            return Exit.FAILED
        fixable = _as_fixable(error)
        if fixable is not None:
            printer.error(fixable)
            return fixable.exit_code
        printer.crash(error, __version__)
        return Exit.FAILED


def _as_unreachable(error: StoreError) -> ProjectError:
    return ProjectError(
        "state-unreachable",
        f"{error.filename} cannot be reached: {error.strerror}",
        hint="check the address and the keys in 'object_store:' (or AWS_…), and the network",
        exit_code=Exit.TRANSIENT,
    )


def _as_fixable(error: Exception) -> ProjectError | None:
    """An error of the operating system that the user can fix: permissions, disk space, a path that is too long."""
    if not isinstance(error, OSError):
        return None
    message = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
    if error.errno in _NO_PERMISSION:
        return ProjectError("not-permitted", message, hint="check the permissions of the file and its folders")
    if error.errno in _NO_SPACE:
        return ProjectError("disk-full", message, hint="free some disk space", exit_code=Exit.TRANSIENT)
    if error.errno in _NO_PATH:
        return ProjectError("bad-path", message, hint="choose a shorter name, or one that is not a link to itself")
    return None


def _run(arguments: list[str]) -> None:
    command = typer.main.get_command(app)
    if f"_{_PROGRAM.upper()}_COMPLETE" in os.environ:
        command.main(arguments, prog_name=_PROGRAM)
    # not command.main(): it treats every broken pipe, also that of a socket, as a closed stdout
    with command.make_context(_PROGRAM, arguments) as context:
        result = command.invoke(context)
    if result is not None:
        raise TypeError(f"a command returned {result!r}, which the shell cannot see; raise typer.Exit(code) instead")


def _as_usage_error(error: typer.TyperException) -> ProjectError:
    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    hint = f"see: {context.command_path} --help" if context else None
    return usage_error(message[:1].lower() + message[1:], hint)


def _reopen_closed_streams() -> None:
    """With `>&-` there is no stdout: Python sets it to None, and the next opened file would take its descriptor."""
    if sys.stdout is not None and sys.stderr is not None:
        return
    while (number := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(number)
    sys.stdout = sys.stdout or os.fdopen(_STDOUT, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(_STDERR, "w", closefd=False)


def _stdout_has_no_reader() -> bool:
    pipe = select.poll()
    pipe.register(_STDOUT, 0)
    closed = any(event & select.POLLERR for _, event in pipe.poll(0))
    if closed:
        # Python flushes stdout at exit and would report an error
        os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)
    return closed
