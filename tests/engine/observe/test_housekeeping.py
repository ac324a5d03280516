"""What the engine tidies up by itself."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from headrace.engine.letters.dead_letters import SCHEMA as LETTERS
from headrace.engine.letters.dead_letters import DeadLetterWriter, read_dead_letters
from headrace.engine.observe.housekeeping import Housekeeper, merge_files, remove_old_generations
from headrace.engine.state.generations import Generation
from headrace.engine.state.locks import changing, reading
from headrace.engine.state.state import StateDir


def letters(folder: Path, numbers: range, *, age: float = 3600.0) -> None:
    for number in numbers:
        box = DeadLetterWriter(folder, "counts", "orders", "g1")
        box.add("malformed", "no", {"offset": number}, b"x")
        box.flush()
    for file in folder.rglob("*.parquet"):
        os.utime(file, (time.time() - age, time.time() - age))


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.parquet"))


def test_many_small_files_become_one_and_no_record_is_lost_or_doubled(tmp_path: Path) -> None:
    letters(tmp_path, range(120))
    before = sorted(read_dead_letters(tmp_path)["id"].to_pylist())
    assert merge_files(tmp_path / "counts", LETTERS) == 119
    assert len(files(tmp_path)) == 1
    assert sorted(read_dead_letters(tmp_path)["id"].to_pylist()) == before
    letters(tmp_path, range(100, 130))  # a batch that runs again writes its letters again
    assert read_dead_letters(tmp_path).num_rows == 130


@pytest.mark.parametrize(("count", "age"), [(20, 3600.0), (120, 1.0)], ids=["few", "new"])
def test_few_or_new_files_are_left_alone(tmp_path: Path, count: int, age: float) -> None:
    letters(tmp_path, range(count), age=age)
    assert merge_files(tmp_path / "counts", LETTERS) == 0
    assert len(files(tmp_path)) == count


def test_nothing_is_merged_under_a_reader(tmp_path: Path) -> None:
    letters(tmp_path, range(60))
    with reading(tmp_path / "counts"), reading(tmp_path / "counts"):
        assert merge_files(tmp_path / "counts", LETTERS) == 0
    assert merge_files(tmp_path / "counts", LETTERS) == 59
    with changing(tmp_path / "counts") as alone:
        assert alone
    with reading(tmp_path / "nowhere"):
        assert merge_files(tmp_path / "nowhere", LETTERS) == 0


def aged(generation: Generation, days: int) -> Generation:
    at = (datetime.now(UTC) - timedelta(days=days)).isoformat(timespec="seconds")
    generation.describe(replace(generation.manifest, created_at=at))
    return generation


def test_old_generations_go_but_not_those_that_are_still_needed(tmp_path: Path) -> None:
    generations = StateDir(tmp_path).generations("counts")
    made = []
    for days, known in ((90, {}), (80, {}), (70, {}), (60, {}), (50, {})):
        made.append(aged(generations.make("test", **known), days))
        generations.switch(made[-1])
    last = aged(generations.make("back", base={"generation": made[1].id, "batch": 3}), 40)
    generations.switch(last)
    removed = remove_old_generations(generations, timedelta(days=30))
    assert removed == [made[0].id, made[2].id, made[3].id]
    assert [one.id for one in generations.all()] == [made[1].id, made[4].id, last.id]
    assert remove_old_generations(StateDir(tmp_path).generations("other"), timedelta(0)) == []


def test_a_generation_left_lately_stays(tmp_path: Path) -> None:
    generations = StateDir(tmp_path).generations("counts")
    made = []
    for days in (90, 80, 2):
        made.append(aged(generations.make("test"), days))
        generations.switch(made[-1])
    assert remove_old_generations(generations, timedelta(days=30)) == [made[0].id]


def test_the_housekeeper_does_it_all_at_its_first_batch(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    letters(state.dead_letters, range(60))
    Housekeeper(state).clean_up("counts")
    assert len(files(state.dead_letters)) == 1
