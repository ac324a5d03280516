"""Folders that commands make."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headrace.core.errors import Exit, ProjectError


def refuse_occupied(folder: Path, force: bool) -> None:
    """Refuse a folder with something in it, unless it is forced."""
    if folder.exists() and not folder.is_dir():
        raise ProjectError(
            "not-a-folder", f"{folder} is a file", hint="name a folder that is new or empty", exit_code=Exit.CONFLICT
        )
    if folder.is_dir() and not force and any(folder.iterdir()):
        raise ProjectError(
            "folder-not-empty",
            f"{folder} is not empty",
            hint="name a new folder, or write into this one with --force (files of the same name are replaced)",
            exit_code=Exit.CONFLICT,
        )


def write_files(folder: Path, contents: Mapping[str, str | bytes]) -> None:
    """Write files by their paths within a folder."""
    target = folder
    try:
        for name, text in contents.items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(text if isinstance(text, bytes) else text.encode())
    except OSError as error:
        raise ProjectError(
            "not-writable", f"{target} cannot be written: {error.strerror}", hint="choose another folder"
        ) from error
