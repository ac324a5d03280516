"""The names of folders and files of table groups."""

from __future__ import annotations

import hashlib
import re


def group_id(group: str) -> str:
    """The name of the folder of a table group: readable and unique."""
    digest = hashlib.sha256(group.encode()).hexdigest()[:10]
    return re.sub(r"[^A-Za-z0-9_.]+", "_", group)[:80].strip("_.") + f"-{digest}"
