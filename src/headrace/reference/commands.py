"""The pages of the command line: one per command, with its subcommands, and one for the exit codes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import typer

from headrace.cli.main import SECTIONS, app, commands
from headrace.core.errors import Exit
from headrace.reference.markdown import page, table

_ORIGIN = "the commands"
_PROGRAM = "headrace"


def command_pages() -> dict[str, str]:
    """Return the pages by path below the reference folder."""
    root = _root()
    pages = {"cli/index.md": _index(root), "cli/exit-codes.md": _exit_codes()}
    for name in root.command.list_commands(root):
        command = root.command.get_command(root, name)
        pages[f"cli/{name}.md"] = _page(typer.Context(command, info_name=name, parent=root))
    return pages


def _root() -> Any:
    command = typer.main.get_command(app)
    return typer.Context(command, info_name=_PROGRAM, **command.context_settings)


def _index(root: Any) -> str:
    about = "Every command has `--help`. The [exit codes](exit-codes.md) are the same for all commands."
    lines = ["# Command line", "", *_text(root.command.help), "", about]
    for section in SECTIONS:
        rows = [(f"[{name}]({name}.md)", _plain(command.help)) for name, command in commands(section).items()]
        lines += ["", f"## {section}", "", *table(("command", "description"), rows)]
    return page(_ORIGIN, *lines, "", "## Global options", "", *_options(root, root.command.get_params(root)))


def _page(context: Any) -> str:
    lines = [f"# {context.command_path}", "", *_described(context)]
    subcommands = [typer.Context(command, info_name=name, parent=context) for name, command in _subcommands(context)]
    if subcommands:
        rows = [(f"[{sub.info_name}](#{_anchor(sub)})", _plain(_first_sentence(sub))) for sub in subcommands]
        lines += ["", *table(("subcommand", "description"), rows)]
    for sub in subcommands:
        lines += ["", f"## {sub.command_path}", "", *_described(sub)]
    return page(_ORIGIN, *lines, "", "[All commands](index.md) · [Exit codes](exit-codes.md)")


def _subcommands(context: Any) -> Iterator[tuple[str, Any]]:
    yield from getattr(context.command, "commands", {}).items()


def _anchor(context: Any) -> str:
    return str(context.command_path).replace(" ", "-")


def _first_sentence(context: Any) -> str:
    paragraph = " ".join((context.command.help or "").partition("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z])", paragraph)[0]


def _described(context: Any) -> list[str]:
    usage = " ".join([context.command_path, *context.command.collect_usage_pieces(context)])
    lines = [*_text(context.command.help), "", "```text", usage, "```"]
    arguments = [
        (f"`{param.metavar or param.name.upper()}`", _default(param), _plain(param.help or ""))
        for param in context.command.params
        if param.param_type_name == "argument" and not param.hidden
    ]
    if arguments:
        lines += ["", *table(("argument", "default", "description"), arguments)]
    options = _options(context, context.command.params)
    return [*lines, "", *options] if options else lines


def _options(context: Any, params: Sequence[Any]) -> list[str]:
    rows = [
        (f"`{param.get_help_record(context)[0]}`", _default(param), _plain(param.help or ""))
        for param in params
        if param.param_type_name == "option" and not param.hidden
    ]
    return table(("option", "default", "description"), rows) if rows else []


def _default(param: Any) -> str:
    if param.required:
        return "required"
    return "" if param.default in (None, False, "") or callable(param.default) else f"`{param.default}`"


def _text(help_text: str | None) -> list[str]:
    return _plain(help_text or "").splitlines()


def _plain(text: str) -> str:
    """Return help text as Markdown: markup characters outside of code are escaped."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else _escaped(part) for part in parts)


def _escaped(text: str) -> str:
    return re.sub(r"([*\[]|^#)", r"\\\1", text, flags=re.MULTILINE).replace("<", "&lt;")


def _exit_codes() -> str:
    about = "Every command ends with one of these codes. With `--json`, an error has its exit code in `exit`."
    rows = [(f"`{code.value}`", code.name.lower().replace("_", " "), code.meaning) for code in Exit]
    lines = ["# Exit codes", "", about, "", *table(("code", "name", "meaning"), rows)]
    return page("`headrace.core.errors.Exit`", *lines, "", "[All commands](index.md) · [Errors](../errors.md)")
