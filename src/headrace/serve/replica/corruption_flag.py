"""Whether the stores of a node have to be looked through before they are trusted again.

LMDB reads through memory maps and believes what it finds: a page that makes no sense can end a process where others
would raise an error. So when a process dies of that, somebody leaves a word, and the applier looks through every store
before it lets anybody read it again.
"""

from __future__ import annotations

import signal
from pathlib import Path

from headrace.core.files.state_files import write_atomically

CRASHES = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE})

_FILE = "suspect"


def suspect(store: Path, reason: str) -> None:
    """Have all stores checked."""
    write_atomically(store / _FILE, reason.encode(), durable=False)


def suspected(store: Path) -> str | None:
    """Why the stores are not trusted now."""
    try:
        return (store / _FILE).read_text(encoding="utf-8")
    except OSError:
        return None


def cleared(store: Path) -> None:
    """All stores were checked."""
    (store / _FILE).unlink(missing_ok=True)
