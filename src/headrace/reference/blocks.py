"""Generated blocks of hand-written pages: the text between `<!-- NAME:start -->` and `<!-- NAME:end -->`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from headrace.reference.guarantees import guarantees_table
from headrace.reference.kinds import kinds_list, kinds_table

_BLOCK = re.compile(r"<!-- (?P<name>[\w-]+):start -->\n.*?<!-- (?P=name):end -->", re.DOTALL)
_MARKER = re.compile(r"<!-- ([\w-]+):(?:start|end) -->")
BLOCKS: dict[str, Callable[[str], list[str]]] = {
    "kinds": kinds_list,
    "guarantees": guarantees_table,
    "processors": partial(kinds_table, "processors"),
}
"""The generators by block name; the argument is the relative path from the page to the reference folder."""


class BlockError(ValueError):
    """A page has a marker that the generator cannot fill."""


def filled(text: str, page: Path, reference: Path) -> str:
    """Return the text of a page with regenerated blocks. Raises BlockError for an unknown or unpaired marker."""
    home = Path(os.path.relpath(reference, page.parent)).as_posix()
    home = "" if home == "." else f"{home}/"
    for marker in _MARKER.finditer(_BLOCK.sub("", text)):
        raise BlockError(f"{page}: {marker[0]} has no counterpart")
    return _BLOCK.sub(lambda block: _generated(block["name"], page, home), text)


def _generated(name: str, page: Path, home: str) -> str:
    if name not in BLOCKS:
        raise BlockError(f"{page}: unknown block '{name}'; known blocks: {', '.join(BLOCKS)}")
    return "\n".join([f"<!-- {name}:start -->", "", *BLOCKS[name](home), "", f"<!-- {name}:end -->"])
