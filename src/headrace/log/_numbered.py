"""Files that are numbered from 1, which give a log its order."""

from __future__ import annotations

import re

from headrace.core.files.state_files import StatePath

_NUMBERED = re.compile(r"(\d{12})\.json")


def numbered(folder: StatePath, number: int) -> StatePath:
    return folder / f"{number:012d}.json"


def number_of(file: StatePath) -> int | None:
    """The number of a file; None for a file without one."""
    match = _NUMBERED.fullmatch(file.name)
    return int(match[1]) if match else None


def numbers(folder: StatePath) -> list[int]:
    """All numbers of files in a folder, in order."""
    return sorted(number for file in files_in(folder) if (number := number_of(file)) is not None)


def highest(folder: StatePath) -> int:
    """The greatest number of a file in a folder; 0 without any."""
    return max(numbers(folder), default=0)


def files_in(folder: StatePath) -> list[StatePath]:
    """The files of a folder; none when it does not exist."""
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []
