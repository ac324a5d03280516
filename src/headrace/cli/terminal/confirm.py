"""Asking before something is changed."""

from __future__ import annotations

import sys

import typer

from headrace.cli.terminal.output import printer
from headrace.core.errors import Exit, ProjectError


def confirm(question: str, yes: bool, word: str | None = None) -> None:
    """Go on only with `--yes` or a yes from a terminal; without either it is an error, never a silent nothing.

    `word` is to be typed instead of a yes, for what cannot be undone by a keystroke.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ProjectError(
            "confirmation-needed",
            f"this changes something, and there is no terminal to ask: {question}",
            hint="add --yes to do it, or --dry-run to only look",
            exit_code=Exit.USAGE,
        )
    wanted = f'Type "{word}" to continue:' if word else "[y/N]"
    print(f"{printer.redact(question)} {wanted} ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ((word,) if word else ("y", "yes")):
        printer.note("nothing was changed")
        raise typer.Exit(int(Exit.FAILED))
