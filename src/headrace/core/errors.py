"""Errors that a user can fix: each has a code, a location and a hint.

Programming errors are not wrapped: they keep their traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Self


class Exit(IntEnum):
    """The exit codes of the `headrace` command."""

    meaning: str

    OK = 0, "The command succeeded."
    FAILED = 1, "The command failed, or a check failed."
    USAGE = 2, "The command line is wrong: an unknown command or option, or a missing argument."
    TRANSIENT = 3, "An external system is unavailable, such as a broker, a disk or a store; try again later."
    NOT_FOUND = 4, "A named object does not exist: a project, a flow, an endpoint, a running engine."
    CONFLICT = (
        5,
        "The current state does not allow the command: for example, a flow runs or needs a new generation.",
    )
    TIMEOUT = 124, "The condition was not met in time."
    INTERRUPTED = 130, "The command was interrupted, for example with Ctrl-C."

    def __new__(cls, code: int, meaning: str) -> Self:
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member


@dataclass(frozen=True)
class Origin:
    """The location of a value in the files of a project."""

    file: str
    line: int | None = None
    path: str = ""

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place} ({self.path})" if self.path else place


class ProjectError(Exception):
    """An error that the user can fix.

    `code` is stable: tests and scripts compare it. `message` and `hint` are for people, and may be reworded.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        where: Origin | None = None,
        hint: str | None = None,
        exit_code: Exit = Exit.FAILED,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.where = where
        self.hint = hint
        self.exit_code = exit_code

    def __str__(self) -> str:
        lines = [f"error[{self.code}]: {self.message}"]
        if self.where is not None:
            lines.append(f"  --> {self.where}")
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)

    def at(self, where: Origin | None) -> ProjectError:
        """Set the location unless the error already has one. Returns the error itself."""
        if self.where is None:
            self.where = where
        return self

    def to_json(self) -> dict[str, object]:
        """Return the document that every command prints with `--json`."""
        where = self.where
        return {
            "code": self.code,
            "message": self.message,
            "where": None if where is None else {"file": where.file, "line": where.line, "path": where.path},
            "hint": self.hint,
            "exit": int(self.exit_code),
        }


class RequestError(ProjectError):
    """An error that the client of an endpoint can fix.

    `status` is the HTTP status; gRPC maps it to its own status codes.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        status: int = 400,
        hint: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(code, message, hint=hint)
        self.status = status
        self.retry_after = retry_after
        """Seconds after which a retry can succeed; None when a retry does not help."""


class ProjectErrors(ProjectError):  # noqa: N818
    """All errors of a project, so that they can be fixed together. Its fields are those of the first error."""

    def __init__(self, errors: Sequence[ProjectError]) -> None:
        first = errors[0]
        super().__init__(
            first.code,
            first.message,
            where=first.where,
            hint=first.hint,
            exit_code=first.exit_code,
        )
        self.errors = tuple(errors)

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)


def unknown_flow(name: str, known: Iterable[str], label: str = "flows") -> ProjectError:
    hint = did_you_mean(name, known, label)
    return ProjectError("unknown-flow", f"flow '{name}' does not exist", hint=hint, exit_code=Exit.NOT_FOUND)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to `name`; None when none is similar."""
    candidates = {k.lower(): k for k in known}
    close = difflib.get_close_matches(name.lower(), candidates, n=1, cutoff=0.6)
    return candidates[close[0]] if close else None


def did_you_mean(name: str, known: Iterable[str], label: str = "known") -> str:
    """Return a hint that names the most similar of the known names and lists all of them."""
    names = sorted(set(known))
    guess = nearest(name, names)
    listing = f"{label}: {', '.join(names)}" if names else f"{label}: none"
    return f"did you mean '{guess}'? {listing}" if guess else listing
