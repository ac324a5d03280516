"""The state folder: generations, schemas, and one engine at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.core.errors import Exit, ProjectError
from headrace.core.files.state_files import write_atomically
from headrace.engine.state.state import StateDir


def test_a_generation_is_made_once_and_kept(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    first = state.current("counts")
    assert StateDir(tmp_path).current("counts") == first
    assert state.current("other").id != first.id
    assert first.manifest.reason == "first start"


def test_a_new_generation_runs_only_after_the_switch(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    first = state.current("counts")
    generations = state.generations("counts")
    second = generations.make("rewind to earliest", start={"orders": {"orders": {"0": 7}}})
    assert state.current("counts") == first
    generations.switch(second)
    assert state.current("counts") == second
    assert second.manifest.parent == first.id
    assert second.manifest.start == {"orders": {"orders": {"0": 7}}}
    assert [one.id[:3] for one in generations.all()] == ["g1-", "g2-"]


def test_a_second_engine_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from headrace.engine.state.state import StateDir\n"
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
