"""Whether a store is well, found out in a process of its own: what LMDB does with a damaged file may end a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from headrace.serve.children import how
from headrace.store.errors import StoreDamagedError

_DAMAGED = 3


def damage_in(folder: Path) -> str | None:
    """What is wrong with the store in a folder; None when every row, index entry, word and count is right."""
    done = subprocess.run(
        [sys.executable, "-m", "headrace.serve.checking", str(folder)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return None
    if done.returncode == _DAMAGED:
        return done.stdout.strip()
    said = done.stderr.strip().rpartition("\n")[2]
    return f"the check of it {how(done.returncode)}: {said}" if said else f"the check of it {how(done.returncode)}"


def main(folder: Path) -> int:
    """Look through one store."""
    from headrace.store.reader import StoreReader

    try:
        reader = StoreReader.open(folder)
        try:
            with reader.view() as view:
                list(view.scan())
        finally:
            reader.close()
    except StoreDamagedError as damage:
        print(damage)
        return _DAMAGED
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
