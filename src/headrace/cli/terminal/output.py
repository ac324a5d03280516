"""What every command prints with: data on stdout, everything else on stderr, secrets on neither.

One process runs one command at a time, so there is one printer; `main` says how errors are wanted, a loaded project
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
        """Forget what belonged to the command before."""
        self.json_errors = json_errors
        self._redactors.clear()

    def hide(self, redact: Redact) -> None:
        """Apply `redact` to everything printed from now on."""
        self._redactors.append(redact)

    def redact(self, text: str) -> str:
        """The text as it may be shown."""
        for redact in self._redactors:
            text = redact(text)
        return text

    def clean(self, value: Any) -> Any:
        """The same JSON value with every text in it as it may be shown."""
        if isinstance(value, str):
            return self.redact(value)
        if isinstance(value, dict):
            return {self.redact(key): self.clean(child) for key, child in value.items()}
        return [self.clean(child) for child in value] if isinstance(value, list | tuple) else value

    def data(self, text: str) -> None:
        """What the user asked for, as text."""
        print(self.redact(text), flush=True)

    def document(self, value: Any) -> None:
        """What the user asked for, as JSON."""
        print(json.dumps(self.clean(value), indent=2, ensure_ascii=False), flush=True)

    def line(self, value: Any) -> None:
        """One of several answers, as JSON on one line."""
        import msgspec

        # not json: it would round decimals
        written = msgspec.json.Encoder(enc_hook=str, decimal_format="number").encode(self.clean(value))
        print(msgspec.json.format(written, indent=0).decode(), flush=True)

    def render(self, renderable: RenderableType) -> None:
        """What the user asked for, styled. The caller made it from clean values and checked `on_terminal`."""
        from rich.console import Console

        # nothing is wrapped or cut for a program that reads it
        width = None if sys.stdout.isatty() else _ANY_WIDTH
        Console(highlight=False, markup=False, width=width).print(renderable)

    def note(self, text: str) -> None:
        """Progress, hints and anything else that is not the answer."""
        print(self.redact(text), file=sys.stderr, flush=True)

    def progress(self, text: str) -> None:
        """A line that may be overlooked: as a note, but faint."""
        from rich.console import Console
        from rich.text import Text

        Console(stderr=True, highlight=False, soft_wrap=True).print(Text(self.redact(text), "dim"))

    def notes_on_terminal(self) -> bool:
        """Whether notes are read by people, with style."""
        return wants_style(sys.stderr)

    def on_terminal(self) -> bool:
        """Whether stdout is a terminal that wants to be written to with style."""
        return wants_style(sys.stdout)

    def warning(self, found: ProjectError) -> None:
        """Something that may be meant, in the shape of an error."""
        self._finding(found, "warning")

    def error(self, error: ProjectError) -> None:
        """All that is wrong, for people or as one line of JSON."""
        if self.json_errors:
            print(json.dumps(self.clean(error_document(error)), ensure_ascii=False), file=sys.stderr, flush=True)
            return
        for one in error.errors if isinstance(error, ProjectErrors) else (error,):
            self._finding(one, "error")

    def crash(self, error: BaseException, version: str) -> None:
        """A programming error: who to tell, and the whole traceback."""
        trace = "".join(traceback.format_exception(error))
        message = f"{type(error).__name__}: {error}"
        hint = f"this is a bug in headrace {version}; please report it with the traceback"
        if self.json_errors:
            document = error_document(ProjectError("internal-error", message, hint=hint))
            document["error"]["traceback"] = trace
            print(json.dumps(self.clean(document), ensure_ascii=False), file=sys.stderr, flush=True)
            return
        self.note(f"error[internal-error]: {hint} below\n{trace.rstrip()}")

    def _finding(self, found: ProjectError, severity: Severity) -> None:
        text = self.redact(str(found)).replace("error[", f"{severity}[", 1)
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
    """What `--json` says about an error: the first, and all of them when there are several to mend."""
    if isinstance(error, ProjectErrors):
        return {"error": error.errors[0].to_json(), "errors": [one.to_json() for one in error.errors]}
    return {"error": error.to_json()}


def usage_error(message: str, hint: str | None = None) -> ProjectError:
    """The command was called in a way it does not know."""
    return ProjectError("usage", message, hint=hint, exit_code=Exit.USAGE)


def wants_style(stream: IO[str]) -> bool:
    """Whether colour and line drawing are welcome there."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def never_fail_on_a_character() -> None:
    """A terminal that cannot show a character shows a question mark; it is no reason to stop."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


printer = Printer()
