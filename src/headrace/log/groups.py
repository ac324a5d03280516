"""The names of folders and files of groups of tables."""

from __future__ import annotations

import hashlib
import re


def group_id(group: str) -> str:
    """What the folder of a group is called: readable, and no other group has it."""
    digest = hashlib.sha256(group.encode()).hexdigest()[:10]
    return re.sub(r"[^A-Za-z0-9_.]+", "_", group)[:80].strip("_.") + f"-{digest}"
