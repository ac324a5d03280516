"""The `headrace` command: which commands there are, and what becomes of their errors.

Each command's module is imported when it is called, so `--help` needs neither Spark nor a project.
"""

from __future__ import annotations

import errno
import importlib
import os
import select
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from headrace import __version__
from headrace.cli.terminal.output import never_fail_on_a_character, printer, usage_error
from headrace.core.errors import Exit, ProjectError, did_you_mean
from headrace.core.files.objects import StoreError

_PROGRAM = "headrace"
_STDOUT, _STDERR = 1, 2
_NO_RIGHT = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_NO_PATH = (errno.ENAMETOOLONG, errno.ELOOP)


@dataclass(frozen=True)
class Command:
    """Where a command is, and its line in the help."""

    module: str
    help: str
    attribute: str = ""

    def load(self, name: str) -> Any:
        """The command itself: a function of its module, or a Typer app with commands of its own."""
        found = getattr(importlib.import_module(f"headrace.cli.{self.module}"), self.attribute or name)
        if isinstance(found, typer.Typer):
            group = typer.main.get_group(found)
            group.no_args_is_help = False  # a missing subcommand is a usage error like any other
            return group
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(name)(found)
        return typer.main.get_command(single)


SECTIONS: dict[str, dict[str, Command]] = {
    "Projects": {
        "init": Command("projects.init", "Make a project that runs as it is."),
        "lint": Command("projects.lint", "Check a project without starting anything."),
        "plan": Command("projects.plan", "Show what a project's flows read, keep, write and guarantee."),
        "run": Command("projects.run", "Run a project's flows."),
        "serve": Command("projects.serve", "Serve a project's endpoints over REST, gRPC and live events."),
        "sql": Command("projects.sql", "Ask a project's streams and lake tables, or just Spark."),
        "test": Command("projects.test", "Run a project's own tests."),
        "migrate": Command("projects.migrate", "Make a project from the configuration of another system.", "app"),
        "schema": Command("projects.schema", "Print the JSON schema of headrace.yaml, for editors."),
    },
    "Operations": {
        "status": Command("operations.status", "Show what the flows of a running engine do."),
        "wait": Command("operations.wait", "Wait until a flow fulfils a condition."),
        "stop": Command("operations.stop", "Stop a project's engine, or some of its flows, after the running batches."),
        "start": Command("operations.start", "Let flows go on that were stopped or have failed."),
        "restart": Command("operations.start", "Stop flows and start them again."),
        "offsets": Command("operations.offsets", "Where flows are, how far behind, and moving them.", "app"),
        "rewind": Command("operations.rewind", "Let a flow go back to an earlier position or savepoint."),
        "generations": Command(
            "operations.generations", "The lives of flows' checkpoints; giving up or dropping some.", "app"
        ),
        "savepoint": Command("operations.savepoint", "Copies of a stopped flow's place and state.", "app"),
        "token": Command("data.token", "Tokens and API keys for callers of endpoints.", "app"),
        "dead-letters": Command(
            "data.dead_letters", "Look at records that could not be processed; replay them.", "app"
        ),
        "endpoints": Command(
            "data.endpoints", "What is served, in which versions; switching and dropping them.", "app"
        ),
        "tables": Command("data.tables", "The tables of a project: columns, rows, and how far they are.", "app"),
        "archive": Command("data.archive", "What archives have, and replay of their days into a topic.", "app"),
        "late": Command("data.late", "Look at rows that came too late for their windows.", "app"),
    },
    "Environment": {
        "doctor": Command("environment.doctor", "Find what is wrong here and say how to mend it."),
        "jars": Command("environment.jars", "Fetch the jars that Spark needs."),
        "services": Command("environment.services", "Real local servers for development.", "app"),
        "version": Command("environment.version", "Print the versions of headrace and what it stands on."),
    },
}
COMMANDS = {name: command for section in SECTIONS.values() for name, command in section.items()}


class CommandGroup(TyperGroup):
    """A group that lists its commands from the table above and imports only the one that is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        """All commands, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name."""
        if cmd_name in COMMANDS:
            return COMMANDS[cmd_name].load(cmd_name)
        if ctx.resilient_parsing:  # the shell is completing a line that is not finished
            return None
        raise usage_error(f"there is no command '{cmd_name}'", did_you_mean(cmd_name, COMMANDS, "commands"))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The commands by section."""
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, command.help) for name, command in commands.items()], col_max=12)


app = typer.Typer(cls=CommandGroup, rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]})


def _print_version(wanted: bool) -> None:
    if wanted:
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
    """Streams, SQL and sinks in one project file, run by Apache Spark."""
    if context.invoked_subcommand is None:
        printer.data(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. The only place where errors are turned into output."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    printer.begin(json_errors="--json" in given)
    _open_what_is_closed()
    never_fail_on_a_character()
    try:
        _run(given)
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
    except Exception as error:  # the last resort: whatever it is, the user must learn that it is not their fault
        if isinstance(error, BrokenPipeError) and _nobody_reads_stdout():
            return Exit.FAILED
        mendable = _as_mendable(error)
        if mendable is not None:
            printer.error(mendable)
            return mendable.exit_code
        printer.crash(error, __version__)
        return Exit.FAILED


def _as_unreachable(error: StoreError) -> ProjectError:
    return ProjectError(
        "state-unreachable",
        f"{error.filename} cannot be reached: {error.strerror}",
        hint="check the address and the keys in 'object_store:' (or AWS_…), and the network",
        exit_code=Exit.TRANSIENT,
    )


def _as_mendable(error: Exception) -> ProjectError | None:
    """What the system refused because of rights or room, wherever that was: the user can mend it."""
    if not isinstance(error, OSError):
        return None
    message = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
    if error.errno in _NO_RIGHT:
        return ProjectError("not-permitted", message, hint="check the rights of it and of the folders above it")
    if error.errno in _NO_ROOM:
        return ProjectError("disk-full", message, hint="make room there", exit_code=Exit.TRANSIENT)
    if error.errno in _NO_PATH:
        return ProjectError("bad-path", message, hint="choose another name, which is shorter or no link to itself")
    return None


def _run(arguments: list[str]) -> None:
    command = typer.main.get_command(app)
    if f"_{_PROGRAM.upper()}_COMPLETE" in os.environ:
        command.main(arguments, prog_name=_PROGRAM)
    # not command.main(): it takes every broken pipe, also one of a socket, for the end of stdout
    with command.make_context(_PROGRAM, arguments) as context:
        result = command.invoke(context)
    if result is not None:
        raise TypeError(f"a command gave back {result!r}, which no shell sees; raise typer.Exit(code) instead")


def _as_usage_error(error: typer.TyperException) -> ProjectError:
    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    hint = f"see: {context.command_path} --help" if context else None
    return usage_error(message[:1].lower() + message[1:], hint)


def _open_what_is_closed() -> None:
    """Called with `>&-` there is no stdout: Python has None for it, and the next file to be opened takes its place."""
    if sys.stdout is not None and sys.stderr is not None:
        return
    while (number := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(number)
    sys.stdout = sys.stdout or os.fdopen(_STDOUT, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(_STDERR, "w", closefd=False)


def _nobody_reads_stdout() -> bool:
    pipe = select.poll()
    pipe.register(_STDOUT, 0)
    closed = any(event & select.POLLERR for _, event in pipe.poll(0))
    if closed:
        # Python flushes once more at its end and would complain then
        os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)
    return closed
