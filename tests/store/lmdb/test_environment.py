"""One LMDB environment, used by several threads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# in a process of its own: what goes wrong here stands still for ever
OPENED_BESIDE_A_WRITER = """
import sys, threading
from pathlib import Path
from headrace.store.lmdb.environment import Environment

environment = Environment(Path(sys.argv[1]), write=True, size=1 << 20)
environment.lmdb.open_db(b"rows")
opened = []
with environment.lmdb.begin(write=True) as txn:
    reader = threading.Thread(target=lambda: opened.append(environment.open_db(b"rows")))
    reader.start()
    reader.join(0.5)
    assert not opened, "it waits for the writer"
    txn.put(b"key", b"value")
reader.join(30)
print(len(opened))
"""


def test_a_database_is_opened_beside_a_writer_which_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OPENED_BESIDE_A_WRITER, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.returncode) == ("1", 0), done.stderr
