"""The printer of all commands: data on stdout, everything else on stderr, secrets on neither.

A process runs one command at a time, so there is one printer. `main` sets the format of errors, and a loaded project
adds its secrets.
"""

from __future__ import annotations

import io
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any, Literal

from headrace.core.errors import Exit, ProjectError, ProjectErrors

if TYPE_CHECKING:
    from rich.console import RenderableType

Redact = Callable[[str], str]
Severity = Literal["error", "warning"]

_ANY_WIDTH = 1_000_000
_STYLES = {"error": "bold red", "warning": "bold yellow"}


class Printer:
    """Prints for people on a terminal, for programs otherwise. Everything passes through the redactors."""

    def __init__(self) -> None:
        self.json_errors = False
        self._redactors: list[Redact] = []

    def begin(self, *, json_errors: bool) -> None:
        """Reset the printer for a new command."""
        self.json_errors = json_errors
        self._redactors.clear()

    def hide(self, redact: Redact) -> None:
        """Apply `redact` to everything printed from now on."""
        self._redactors.append(redact)

    def redact(self, text: str) -> str:
        """Return the text without secrets."""
        for redact in self._redactors:
            text = redact(text)
        return text

    def clean(self, value: Any) -> Any:
        """Return a JSON value without secrets in its texts."""
        if isinstance(value, str):
            return self.redact(value)
        if isinstance(value, dict):
            return {self.redact(key): self.clean(child) for key, child in value.items()}
        return [self.clean(child) for child in value] if isinstance(value, list | tuple) else value

    def data(self, text: str) -> None:
        """Print the result of a command as text."""
        print(self.redact(text), flush=True)

    def document(self, value: Any) -> None:
        """Print the result of a command as JSON."""
        print(json.dumps(self.clean(value), indent=2, ensure_ascii=False), flush=True)

    def line(self, value: Any) -> None:
        """Print one of several results as JSON on one line."""
        import msgspec

        # not json: it would round decimals
        written = msgspec.json.Encoder(enc_hook=str, decimal_format="number").encode(self.clean(value))
        print(msgspec.json.format(written, indent=0).decode(), flush=True)

    def render(self, renderable: RenderableType) -> None:
        """Print a styled result. The caller has redacted its values and checked `on_terminal`."""
        from rich.console import Console

        # output for a program is neither wrapped nor truncated
        width = None if sys.stdout.isatty() else _ANY_WIDTH
        Console(highlight=False, markup=False, width=width).print(renderable)

    def note(self, text: str) -> None:
        """Print progress, hints and everything else that is not the result."""
        print(self.redact(text), file=sys.stderr, flush=True)

    def progress(self, text: str) -> None:
        """Print a less important note, dimmed."""
        from rich.console import Console
        from rich.text import Text

        Console(stderr=True, highlight=False, soft_wrap=True).print(Text(self.redact(text), "dim"))

    def notes_on_terminal(self) -> bool:
        """Return whether stderr is a terminal that supports styles."""
        return wants_style(sys.stderr)

    def on_terminal(self) -> bool:
        """Return whether stdout is a terminal that supports styles."""
        return wants_style(sys.stdout)

    def warning(self, finding: ProjectError) -> None:
        """Print a warning in the form of an error."""
        self._finding(finding, "warning")

    def error(self, error: ProjectError) -> None:
        """Print an error, or all errors, as text or as one line of JSON."""
        if self.json_errors:
            print(json.dumps(self.clean(error_document(error)), ensure_ascii=False), file=sys.stderr, flush=True)
            return
        for single in error.errors if isinstance(error, ProjectErrors) else (error,):
            self._finding(single, "error")

    def crash(self, error: BaseException, version: str) -> None:
        """Print a programming error with its traceback, and how to report it."""
        trace = "".join(traceback.format_exception(error))
        message = f"{type(error).__name__}: {error}"
        hint = f"this is a bug in headrace {version}; please report it with the traceback"
        if self.json_errors:
            document = error_document(ProjectError("internal-error", message, hint=hint))
            document["error"]["traceback"] = trace
            print(json.dumps(self.clean(document), ensure_ascii=False), file=sys.stderr, flush=True)
            return
        self.note(f"error[internal-error]: {hint} below\n{trace.rstrip()}")

    def _finding(self, finding: ProjectError, severity: Severity) -> None:
        text = self.redact(str(finding)).replace("error[", f"{severity}[", 1)
        if not wants_style(sys.stderr):
            print(text, file=sys.stderr, flush=True)
            return
        from rich.console import Console
        from rich.text import Text

        styled = Text(text)
        styled.highlight_regex(rf"^{severity}\[[^\]]*\]", _STYLES[severity])
        styled.highlight_regex(r"(?m)^  (-->|hint:)", "bold cyan")
        Console(stderr=True, highlight=False, soft_wrap=True).print(styled)


def error_document(error: ProjectError) -> dict[str, Any]:
    """Return the document that `--json` prints for an error: the first error, and all of them if there are several."""
    if isinstance(error, ProjectErrors):
        return {"error": error.errors[0].to_json(), "errors": [single.to_json() for single in error.errors]}
    return {"error": error.to_json()}


def usage_error(message: str, hint: str | None = None) -> ProjectError:
    """Return the error for a wrong command line."""
    return ProjectError("usage", message, hint=hint, exit_code=Exit.USAGE)


def wants_style(stream: IO[str]) -> bool:
    """Return whether a stream supports colour and line drawing."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def never_fail_on_a_character() -> None:
    """Print a question mark for a character that the terminal cannot show, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


printer = Printer()
