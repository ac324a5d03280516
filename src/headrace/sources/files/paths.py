"""The files of a path of the project: a file, a folder or a glob, as Spark lists them."""

from __future__ import annotations

import glob
import re
from pathlib import Path

_GLOB = re.compile(r"[*?\[{]")
_BRACES = re.compile(r"\{([^{}]*)\}")
_PARTITION = re.compile(r"([^/=]+)=([^/]*)")


def is_local(path: str) -> bool:
    """Whether the path is on the local disk."""
    return "://" not in path or path.startswith("file://")


def is_glob(path: str) -> bool:
    """Whether the path is a pattern."""
    return _GLOB.search(path) is not None


def base_folder(path: str) -> str:
    """The part of a path before its first pattern: partition folders are counted from here."""
    match = _GLOB.search(path)
    return path if match is None else path[: match.start()].rpartition("/")[0]


def matching_files(path: str, recursive: bool) -> list[Path]:
    """The local data files, oldest first. Names that start with `_` or `.` are hidden, as they are for Spark."""
    plain = path.removeprefix("file://")
    hits = (Path(hit) for pattern in _without_braces(plain) for hit in glob.glob(pattern))
    files = {file for hit in hits for file in ([hit] if hit.is_file() else _files_in(hit, recursive))}
    return sorted((file for file in files if not _hidden(file)), key=lambda file: (file.stat().st_mtime_ns, file))


def folders_of(path: str, recursive: bool) -> list[str]:
    """The folders, or patterns of folders, of the files of a path: itself, or its parent."""
    folders = []
    for pattern in _without_braces(path.removeprefix("file://")):
        parent, _, name = pattern.rpartition("/")
        folders.append(pattern)
        if is_glob(name) or Path(pattern).is_file():
            folders.append(parent)
        if recursive:
            folders.append(f"{pattern}/*")
    return folders


def partition_values(file: str, base: str) -> dict[str, str]:
    """The values in folder names such as `dt=2026-01-31` between the base folder and the file."""
    folders = file[len(base) :].split("/")[:-1] if file.startswith(base) else []
    return {match[1]: match[2] for match in map(_PARTITION.fullmatch, folders) if match}


def _without_braces(pattern: str) -> list[str]:
    """Hadoop's `{a,b}` expanded, which Python's glob does not support."""
    match = _BRACES.search(pattern)
    if match is None:
        return [pattern]
    before, after = pattern[: match.start()], pattern[match.end() :]
    return [each for choice in match[1].split(",") for each in _without_braces(before + choice + after)]


def _files_in(folder: Path, recursive: bool) -> list[Path]:
    files = []
    for entry in folder.iterdir():
        if entry.is_file():
            files.append(entry)
        elif not _hidden(entry) and (recursive or _PARTITION.fullmatch(entry.name)):
            files += _files_in(entry, recursive)
    return files


def _hidden(entry: Path) -> bool:
    return entry.name.startswith((".", "_"))
