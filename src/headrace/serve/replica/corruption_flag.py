"""A flag in the store folder: all stores of the node must be checked before they are read again.

LMDB reads through memory maps and trusts the file: a corrupt page can crash a process where other databases would raise
an error. So when a process crashes that way, the flag is set, and the applier checks every store before it is read
again.
"""

from __future__ import annotations

import signal
from pathlib import Path

from headrace.core.files.state_files import write_atomically

CRASHES = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE})

_FILE = "suspect"


def set_flag(store: Path, reason: str) -> None:
    write_atomically(store / _FILE, reason.encode(), durable=False)


def flag_reason(store: Path) -> str | None:
    """Why the flag is set; None: it is not set."""
    try:
        return (store / _FILE).read_text(encoding="utf-8")
    except OSError:
        return None


def clear_flag(store: Path) -> None:
    (store / _FILE).unlink(missing_ok=True)
