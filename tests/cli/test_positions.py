"""`offsets`, `rewind` and `savepoint` as a script sees them, on a project whose source needs no service."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Run
from tests.engine.state.test_checkpoints import write_batch

from headrace.core.errors import Exit
from headrace.engine.state.state import StateDir

FILES = """\
project: shop
streams:
  orders: {source: {type: files, path: in}, format: {type: json, columns: "id bigint"}}
flows:
  copy: {sql: SELECT id FROM orders, sinks: [{type: files, path: out}]}
  idle: {sql: SELECT id FROM orders}
"""


@pytest.fixture
def folder(write_project: Callable[[str, str], Path]) -> Path:
    made = write_project("shop", FILES)
    (made / "in").mkdir()
    return made


@pytest.fixture
def ran(folder: Path) -> StateDir:
    """The state of a flow that has finished a batch."""
    state = StateDir(folder / ".headrace")
    write_batch(state.current("copy").checkpoint_folder, 0, {"logOffset": 0})
    return state


@pytest.mark.parametrize(
    "arguments",
    [
        ["offsets", "reset", "copy"],
        ["offsets", "reset", "copy", "--to-earliest", "--to-latest"],
        ["offsets", "reset", "copy", "--to-earliest", "--dry-run", "--execute"],
        ["offsets", "reset", "copy", "--to-datetime", "soon"],
        ["offsets", "reset", "copy", "--by-duration", "soon"],
        ["offsets", "reset", "copy", "--to-earliest", "--topic", ":1"],
        ["offsets", "reset", "--to-earliest"],
        ["rewind", "copy"],
        ["rewind", "copy", "idle", "--to", "earliest"],
        ["savepoint", "create"],
        ["savepoint", "delete", "copy"],
    ],
)
def test_a_wrong_call_changes_nothing(headrace: Run, folder: Path, arguments: list[str]) -> None:
    done = headrace(*arguments, "-p", folder, "--json")
    assert (done.code, done.error["error"]["code"]) == (Exit.USAGE, "usage")
    assert not (folder / ".headrace" / "flows").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "exit_code"),
    [
        (["rewind", "copy", "--to", "nowhere"], "unknown-target", Exit.NOT_FOUND),
        (["rewind", "copy", "--to", "latest", "--yes"], "rewind-unsupported", Exit.CONFLICT),
        (["rewind", "copy", "--to", "gone.json"], "missing-file", Exit.NOT_FOUND),
        (["rewind", "copy", "--to", "earliest"], "confirmation-needed", Exit.USAGE),
        (["rewind", "nobody", "--to", "earliest"], "unknown-flow", Exit.NOT_FOUND),
        (["offsets", "reset", "copy", "--to-earliest"], "confirmation-needed", Exit.USAGE),
        (["offsets", "show", "idle"], "no-sinks", Exit.FAILED),
        (["savepoint", "list", "nobody"], "unknown-flow", Exit.NOT_FOUND),
        (["savepoint", "delete", "copy", "nothing", "--yes"], "unknown-savepoint", Exit.NOT_FOUND),
    ],
)
def test_refusals_have_a_code(
    headrace: Run, folder: Path, ran: StateDir, arguments: list[str], code: str, exit_code: Exit
) -> None:
    before = ran.current("copy")
    done = headrace(*arguments, "-p", folder, "--json")
    assert (done.code, done.error["error"]["code"]) == (exit_code, code)
    assert ran.current("copy") == before


def test_a_file_of_offsets_is_checked(headrace: Run, folder: Path, ran: StateDir) -> None:
    (folder / "o.json").write_text("[]")
    done = headrace("rewind", "copy", "--to", folder / "o.json", "-p", folder, "--json")
    assert (done.code, done.error["error"]["code"]) == (Exit.USAGE, "bad-offsets")


def test_a_dry_run_says_everything_and_does_nothing(headrace: Run, folder: Path, ran: StateDir) -> None:
    before = ran.current("copy")
    done = headrace("rewind", "copy", "--to", "earliest", "--dry-run", "-p", folder)
    assert done.code == Exit.OK
    assert done.out.splitlines() == [
        "flow copy: to earliest",
        "  stream  partition  from         to  records",
        "  orders  all           –  beginning        –",
        "effects:",
        "  parquet files in out: records are read again: their rows are written to new files, next to the existing "
        "ones",
    ]
    assert ran.current("copy") == before


def test_a_rewind_says_how_to_undo_it_and_the_undoing_works(headrace: Run, folder: Path, ran: StateDir) -> None:
    first = ran.current("copy")
    done = headrace("rewind", "copy", "--to", "earliest", "--yes", "-p", folder, "--json")
    assert done.code == Exit.OK
    assert done.data["done"] is True
    assert ran.current("copy").id == done.data["new_generation"] != first.id
    assert f"headrace rewind copy --to {first.id}" in done.err
    back = headrace("rewind", "copy", "--to", first.id, "--yes", "-p", folder, "--json")
    assert back.code == Exit.OK
    committed = ran.current("copy").checkpoint.committed()
    assert committed is not None
    assert committed.batch_id == 0


def test_a_flow_is_not_moved_while_an_engine_runs(headrace: Run, folder: Path, ran: StateDir) -> None:
    with ran.lock():
        for arguments in (["rewind", "copy", "--to", "earliest", "--yes"], ["savepoint", "create", "copy"]):
            done = headrace(*arguments, "-p", folder, "--json")
            assert (done.code, done.error["error"]["code"]) == (Exit.CONFLICT, "flow-running")


def test_savepoints_are_made_listed_and_deleted(headrace: Run, folder: Path, ran: StateDir) -> None:
    assert headrace("savepoint", "list", "-p", folder, "--json").data == []
    made = headrace("savepoint", "create", "copy", "here", "-p", folder)
    assert (made.code, made.out) == (Exit.OK, "here\n")
    unnamed = headrace("savepoint", "create", "copy", "-p", folder, "--json").data
    assert unnamed["batch"] == 0
    listed = headrace("savepoint", "list", "copy", "-p", folder, "--json").data
    assert [one["name"] for one in listed] == ["here", unnamed["name"]]
    assert headrace("savepoint", "delete", "copy", "here", "--dry-run", "-p", folder).code == Exit.OK
    assert headrace("savepoint", "delete", "copy", "here", "--yes", "-p", folder, "--json").data["done"] is True
    left = headrace("savepoint", "list", "-p", folder)
    assert "here" not in left.out
    assert unnamed["name"] in left.out


def test_a_source_without_positions_is_named(headrace: Run, folder: Path, ran: StateDir) -> None:
    said = headrace("offsets", "show", "copy", "-p", folder, "--json").data["flows"][0]
    assert (said["lag"], said["lag_s"], said["partitions"], said["untold"]) == (None, None, [], ["orders"])
    assert "has no positions" in headrace("offsets", "show", "-p", folder).out
