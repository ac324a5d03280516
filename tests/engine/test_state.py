"""The state folder: generations, schemas, and one engine at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.core.errors import Exit, ProjectError
from headrace.engine.state import StateDir, write_atomically


def test_a_generation_is_made_once_and_kept(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    first = state.generation("counts")
    assert StateDir(tmp_path).generation("counts") == first
    assert state.generation("other") != first
    assert first in str(state.checkpoint("counts"))


def test_a_second_engine_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from headrace.engine.state import StateDir\n"
        f"with StateDir(Path({str(tmp_path)!r})).lock(): print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ProjectError) as refused, StateDir(tmp_path).lock():
            pass
        assert refused.value.code == "state-in-use"
        assert refused.value.exit_code == Exit.CONFLICT
        assert str(holder.pid) in refused.value.message
        holder.kill()
        holder.wait()
    with StateDir(tmp_path).lock():  # the lock of a killed engine is free
        pass


def test_an_unwritable_folder_has_a_hint(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ProjectError) as refused, StateDir(tmp_path / "file" / "state").lock():
        pass
    assert refused.value.code == "state-unwritable"


def test_atomic_writes_leave_no_scratch_files(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a" / "b", b"1")
    write_atomically(tmp_path / "a" / "b", b"2")
    assert [f.name for f in (tmp_path / "a").iterdir()] == ["b"]
    assert (tmp_path / "a" / "b").read_bytes() == b"2"
