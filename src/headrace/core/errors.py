"""Errors a user can mend: each has a code, a place and a hint.

Programming errors are not wrapped here: they keep their traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Self


class Exit(IntEnum):
    """The exit codes of the command, for scripts."""

    meaning: str

    OK = 0, "The command succeeded."
    FAILED = 1, "The command failed, or what it checked is wrong."
    USAGE = 2, "The command line is wrong: an unknown command or option, or a missing argument."
    TRANSIENT = 3, "Something outside is unavailable, such as a broker, a disk or a store; try again later."
    NOT_FOUND = 4, "What the command names does not exist: a project, a flow, an endpoint, a running engine."
    CONFLICT = 5, "The current state does not allow it, such as a flow that runs or needs a new generation."
    TIMEOUT = 124, "The condition was not met in time."
    INTERRUPTED = 130, "The command was interrupted, for example with Ctrl-C."

    def __new__(cls, code: int, meaning: str) -> Self:
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member


@dataclass(frozen=True)
class Origin:
    """The place in a project's files that a value came from."""

    file: str
    line: int | None = None
    path: str = ""

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place} ({self.path})" if self.path else place


class ProjectError(Exception):
    """Something the user can mend. Tests assert on `code`, people read the rest."""

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
        """The same error with a place, unless it already knows one."""
        if self.where is None:
            self.where = where
        return self

    def to_json(self) -> dict[str, object]:
        """The shape every command prints with --json."""
        where = self.where
        return {
            "code": self.code,
            "message": self.message,
            "where": None if where is None else {"file": where.file, "line": where.line, "path": where.path},
            "hint": self.hint,
            "exit": int(self.exit_code),
        }


class RequestError(ProjectError):
    """Something a caller of an endpoint can mend. `status` is what HTTP says of it; gRPC has its own word for each."""

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
        """Seconds until it is worth asking again, if time alone mends it."""


class ProjectErrors(ProjectError):  # noqa: N818
    """All that is wrong with a project, so that it can be mended in one go."""

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
    """The error for a flow that is not there, with those that are."""
    hint = did_you_mean(name, known, label)
    return ProjectError("unknown-flow", f"there is no flow '{name}'", hint=hint, exit_code=Exit.NOT_FOUND)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant."""
    candidates = {k.lower(): k for k in known}
    close = difflib.get_close_matches(name.lower(), candidates, n=1, cutoff=0.6)
    return candidates[close[0]] if close else None


def did_you_mean(name: str, known: Iterable[str], label: str = "known") -> str:
    """A hint that names the nearest of `known` and lists them all."""
    names = sorted(set(known))
    guess = nearest(name, names)
    listing = f"{label}: {', '.join(names)}" if names else f"{label}: none"
    return f"did you mean '{guess}'? {listing}" if guess else listing
