"""The checker itself: right sinks pass, and each kind of damage is named after the promise it breaks."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.faults import checker, generator
from tests.faults.checker import Findings, Log

WATERMARK_MS = 60_000
Rows = list[dict[str, Any]]


def as_time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    path = tmp_path_factory.mktemp("log") / "log"
    lines = [event.line for event in generator.events(3000, seed=5)]
    path.write_text("\n".join([*lines, json.dumps({"sent": len(lines), "acknowledged": len(lines)})]))
    return Log.read(path)


def rides(log: Log) -> Rows:
    return [{"id": i, "k": k, "n": n, "amount": a, "ts": as_time(ts)} for i, (k, n, a, ts) in log.good.items()]


def windows(log: Log) -> Rows:
    closed = log.closed_windows(WATERMARK_MS)
    return [{"since": as_time(start), "k": k, "n": n, "total": total} for (start, k), (n, total) in closed.items()]


def broken(check: Callable[[Findings], None]) -> list[tuple[str, int]]:
    found = Findings()
    check(found)
    assert found.verdict()["ok"] == (not found.violations)
    return [(one.invariant, one.count) for one in found.violations]


def test_the_generator_repeats_itself_and_bounds_its_disorder() -> None:
    made = list(generator.events(3000, seed=5))
    assert made == list(generator.events(3000, seed=5))
    assert made != list(generator.events(3000, seed=6))
    newest = 0
    for event in made:
        newest = max(newest, event.ts)
        assert newest - event.ts < WATERMARK_MS or event.id.startswith("last")
    assert 10 < sum(event.bad for event in made) < 60
    for event in made:
        if event.bad:
            with pytest.raises(ValueError, match=r".+"):
                json.loads(event.value)
            assert checker._name(event.value) == event.id
        else:
            assert json.loads(event.value)["id"] == event.id


def test_the_recompute_counts_every_event_but_the_last_ones(log: Log) -> None:
    closed = log.closed_windows(WATERMARK_MS)
    assert sum(n for n, _total in closed.values()) == len(log.good) - generator.PARTITIONS
    assert sum(total for _n, total in closed.values()) == sum(amount for _k, _n, amount, _ts in log.good.values()) - 4
    start, key = next(iter(closed))
    inside = [a for k, _n, a, ts in log.good.values() if k == key and start <= ts < start + checker.WINDOW_MS]
    assert closed[(start, key)] == (len(inside), sum(inside))


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda rows: rows, []),
        (lambda rows: rows[:-1], [("I1", 1)]),
        (lambda rows: [*rows, rows[3], rows[3]], [("I2", 1)]),
        (lambda rows: [*rows, {**rows[3], "id": "stranger"}], [("I7", 1)]),
        (lambda rows: [{**rows[0], "amount": -1}, *rows[1:]], [("I1", 1)]),
        (lambda rows: [rows[1], *rows[1:]], [("I1", 1), ("I2", 1)]),
    ],
    ids=["right", "lost", "repeated", "made up", "changed", "swapped for another"],
)
def test_events(log: Log, damage: Callable[[Rows], Rows], expected: list[tuple[str, int]]) -> None:
    assert broken(lambda found: checker.check_events(found, "rides lake", damage(rides(log)), log)) == expected


def test_an_event_that_was_never_acknowledged_may_be_there(log: Log) -> None:
    unsure = Log(dict(list(log.good.items())[1:]), log.bad, complete=False)
    assert broken(lambda found: checker.check_events(found, "rides lake", rides(log), unsure)) == []


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda rows: rows, []),
        (lambda rows: rows[1:], [("I1", 1)]),
        (lambda rows: [*rows, rows[0]], [("I2", 1)]),
        (lambda rows: [{**rows[0], "n": rows[0]["n"] + 1}, *rows[1:]], [("I3", 1)]),
        (lambda rows: [{**rows[0], "total": 0}, *rows[1:]], [("I3", 1)]),
        (lambda rows: [*rows, {**rows[0], "since": "2030-01-01T00:00:00Z"}], [("I3", 1)]),
    ],
    ids=["right", "lost", "repeated", "miscounted", "wrong sum", "not closed"],
)
def test_windows(log: Log, damage: Callable[[Rows], Rows], expected: list[tuple[str, int]]) -> None:
    rows = damage(windows(log))
    assert broken(lambda found: checker.check_windows(found, "windows lake", rows, log, WATERMARK_MS)) == expected


def test_order(log: Log) -> None:
    records = [(0, offset, row) for offset, row in enumerate(rides(log))]
    assert broken(lambda found: checker.check_order(found, "rides kafka", records)) == []
    first, later = (index for index, (_p, _o, row) in enumerate(records) if row["k"] == "k03" and row["n"] in (0, 2))
    swapped = list(records)
    swapped[first], swapped[later] = (0, first, records[later][2]), (0, later, records[first][2])
    assert {name for name, _count in broken(lambda found: checker.check_order(found, "rides kafka", swapped))} == {"I4"}
    scattered = [(offset % 2, offset, row) for _p, offset, row in records]
    assert broken(lambda found: checker.check_order(found, "rides kafka", scattered))[-1] == ("I4", generator.KEYS)


@pytest.mark.parametrize(
    ("damage", "late", "expected"),
    [
        (lambda letters: letters, 0, []),
        (lambda letters: [*letters, letters[0]], 0, []),  # a replay writes the same letter again
        (lambda letters: letters[1:], 0, [("I7", 1)]),
        (lambda letters: [*letters, {"id": "x", "value": letters[0]["value"]}], 0, [("I7", 1)]),
        (lambda letters: [*letters, {"id": "x", "value": b"?"}], 0, [("I7", 1)]),
        (lambda letters: letters, 3, [("I7", 3)]),
    ],
    ids=["right", "written twice", "lost", "two ids", "no event", "late"],
)
def test_letters(log: Log, damage: Callable[[Rows], Rows], late: int, expected: list[tuple[str, int]]) -> None:
    made: Rows = [
        {"id": f"letter-{event.id}", "value": event.value} for event in generator.events(3000, seed=5) if event.bad
    ]
    assert broken(lambda found: checker.check_letters(found, "rides", damage(made), late, log)) == expected


OFFSETS = 'v1\n{"batchWatermarkMs":0}\n{"in":{"0":1}}'
COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'


def checkpoint(folder: Path, batches: int, commits: int) -> Path:
    for kind, count, text in (("offsets", batches, OFFSETS), ("commits", commits, COMMIT)):
        (folder / kind).mkdir(parents=True)
        for number in range(count):
            (folder / kind / str(number)).write_text(text)
    return folder


def test_checkpoints(tmp_path: Path) -> None:
    right = checkpoint(tmp_path / "right", 3, 3)
    assert broken(lambda found: checker.check_checkpoint(found, "rides", right)) == []
    in_flight = checkpoint(tmp_path / "in_flight", 3, 2)
    assert broken(lambda found: checker.check_checkpoint(found, "rides", in_flight)) == [("I8", 1)]
    assert broken(lambda found: checker.check_checkpoint(found, "rides", tmp_path / "none")) == [("I8", 1)]
    (right / "offsets" / "1").write_text("v1\n{")
    (right / "commits" / "2").write_text("")
    assert broken(lambda found: checker.check_checkpoint(found, "rides", right)) == [("I8", 2)]


def test_folders(tmp_path: Path) -> None:
    folder, staging = tmp_path / "out", tmp_path / ".out.headrace" / "staging" / "b"
    folder.mkdir()
    (folder / "rides-0.json").write_text('{"id": 1}\n{"id": 2}\n')
    assert broken(lambda found: checker.check_folder(found, "rides files", folder)) == []
    assert checker.read_json_files(folder) == [{"id": 1}, {"id": 2}]
    staging.mkdir(parents=True)
    (staging / "part-0").touch()
    (folder / "_SUCCESS").touch()
    assert broken(lambda found: checker.check_folder(found, "rides files", folder)) == [("I8", 2)]


def test_a_lake_is_read_as_its_log_says(tmp_path: Path) -> None:
    table = pa.table({"id": ["a", "b"]})
    write_deltalake(str(tmp_path / "lake"), table)
    (tmp_path / "lake" / "part-of-no-version.parquet").write_bytes(b"")
    assert checker.read_lake(tmp_path / "lake") == ([{"id": "a"}, {"id": "b"}], 1)


def test_times_of_all_sinks_are_one() -> None:
    moment = datetime(2026, 1, 1, 0, 0, 0, 120_000, tzinfo=UTC)
    texts = ("2026-01-01T00:00:00.120Z", "2026-01-01T00:00:00.120+00:00", "2026-01-01 00:00:00.12")
    assert {checker.milliseconds(one) for one in (moment, moment.replace(tzinfo=None), *texts)} == {
        generator.BASE_MS + 120
    }


@pytest.mark.parametrize("module", [checker, generator])
def test_checker_and_generator_share_nothing_with_the_engine(module: Any) -> None:
    tree = ast.parse(Path(module.__file__).read_text())
    names = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    assert not names & {"headrace", "pyspark", "tests"}
