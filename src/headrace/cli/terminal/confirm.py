"""Confirmation before a change."""

from __future__ import annotations

import sys

import typer

from headrace.cli.terminal.output import printer
from headrace.core.errors import Exit, ProjectError


def confirm(question: str, yes: bool, word: str | None = None) -> None:
    """Continue only with `--yes` or a confirmation on a terminal. Raises ProjectError without a terminal.

    `word` must be typed instead of a yes, for changes with a large effect.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ProjectError(
            "confirmation-needed",
            f"this needs a confirmation, and there is no terminal: {question}",
            hint="add --yes to confirm, or --dry-run to change nothing",
            exit_code=Exit.USAGE,
        )
    prompt = f'Type "{word}" to continue:' if word else "[y/N]"
    print(f"{printer.redact(question)} {prompt} ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ((word,) if word else ("y", "yes")):
        printer.note("nothing was changed")
        raise typer.Exit(int(Exit.FAILED))
