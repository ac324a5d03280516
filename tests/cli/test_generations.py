"""`headrace generations`: what there is, giving up a candidate, dropping what is kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.engine.positions.upgrade import detect_change, resolve_generation
from headrace.engine.state.generations import Generation
from headrace.engine.state.state import StateDir
from headrace.engine.supervise.candidate import start_candidate
from headrace.plan.planner import make_plan
from headrace.project.loader import load

Run = Callable[..., Any]


@pytest.fixture
def built(project: Path) -> tuple[Path, Generation, Generation]:
    """A project whose flow has a generation, and one that is built beside it."""
    loaded = load(project)
    state, flow = StateDir.of(loaded.context), make_plan(loaded).flow("big")
    first = resolve_generation(loaded, state, flow)
    for name in ("offsets", "commits"):
        (first.checkpoint_folder / name).mkdir(parents=True)
        (first.checkpoint_folder / name / "0").write_text(
            'v1\n{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}\n{}'
        )
    return project, first, start_candidate(loaded, state, detect_change(loaded, state, flow))


def test_lists_which_runs_and_which_is_built(built: tuple[Path, Generation, Generation], headrace: Run) -> None:
    project, first, made = built
    found = headrace("generations", "list", project, "--json").data
    assert [(one["generation"], one["role"], one["batches"]) for one in found] == [
        (first.id, "current", 1),
        (made.id, "candidate", 0),
    ]
    assert all(one["defined"] for one in found)
    lines = headrace("generations", "list", project, "big").out.splitlines()
    assert lines[2].split()[:3] == ["big", made.id, "candidate"]
    assert "built in parallel" in headrace("plan", project).out
    assert headrace("generations", "list", project, "bg", "--json").error["error"]["code"] == "unknown-flow"


def test_gives_up_a_candidate(built: tuple[Path, Generation, Generation], headrace: Run) -> None:
    project, first, made = built
    ran = headrace("generations", "abandon", project, "big", "--json")
    assert (ran.code, ran.error["error"]["code"]) == (2, "confirmation-needed")
    assert headrace("generations", "abandon", project, "big", "--dry-run", "--json").data["done"] is False
    done = headrace("generations", "abandon", project, "big", "--yes", "--json").data
    assert done == {"flow": "big", "generation": made.id, "done": True}
    assert [one["generation"] for one in headrace("generations", "list", project, "--json").data] == [first.id]
    assert (
        headrace("generations", "abandon", project, "big", "--yes", "--json").error["error"]["code"] == "no-candidate"
    )


def test_drops_only_what_nothing_needs(built: tuple[Path, Generation, Generation], headrace: Run) -> None:
    project, first, made = built
    for one in (first, made):
        ran = headrace("generations", "drop", project, "big", one.id, "--yes", "--json")
        assert (ran.code, ran.error["error"]["code"]) == (5, "generation-in-use")
    ran = headrace("generations", "drop", project, "big", "g9-ffffff", "--yes", "--json")
    assert (ran.code, ran.error["error"]["code"]) == (4, "unknown-generation")
    assert headrace("generations", "drop", project, "big", "--json").code == 2
    StateDir(project / ".headrace").generations("big").switch(made)
    assert headrace("generations", "drop", project, "big", first.id, "--yes", "--json").data["done"] is True
    assert not first.folder.exists()


def test_a_flow_is_not_moved_while_a_candidate_is_built(
    built: tuple[Path, Generation, Generation], headrace: Run
) -> None:
    project, _first, _made = built
    ran = headrace("savepoint", "create", project, "big", "--json")
    assert (ran.code, ran.error["error"]["code"]) == (5, "candidate-exists")
    ran = headrace("run", project, "--new-generation", "big", "--json")
    assert (ran.code, ran.error["error"]["code"]) == (5, "candidate-exists")


def test_status_says_how_far_a_candidate_is() -> None:
    from headrace.cli.operations.status import _remarks

    lag = {"records": 1200, "s": 4.0, "trend": "shrinking"}
    candidate = {"generation": "g2-abc", "text": "catching up", "lag": lag}
    flow = {"state": "running", "reason": None, "note": None, "held_back_by": None, "candidate": candidate}
    assert _remarks(flow) == ["candidate g2-abc: catching up, 4.0s / 1,200 ↓ behind"]
