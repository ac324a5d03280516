"""The archive: every line once in its folder, whatever happens while it is written, merged, finished or taken back."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.sinks.archives import Lines, stage_lines
from tests.sinks.trials import Trial

from headrace.core.capabilities import Rewind
from headrace.core.context import Batch, Context
from headrace.core.errors import ProjectError
from headrace.core.files.state_files import StatePath, names_in
from headrace.sinks import archive as archive_module
from headrace.sinks._refused import Report
from headrace.sinks.archive import ArchiveSink
from headrace.sinks.archive.batch import Staged
from headrace.sinks.archive.files import archive_root, ends, parts_of, sorted_out
from headrace.testing.services import S3

DAY = "orders/dt=2026-01-31"
NEXT = "orders/dt=2026-02-01"


def sink(**options: Any) -> ArchiveSink:
    given = {"type": "archive", "path": "archive", "time": "ts", "position": ["_partition", "_offset"]}
    return ArchiveSink.model_validate(given | options)


def batch(root: Path, number: int = 0, generation: str = "g1", **options: Any) -> Batch:
    return Batch("backup", generation, number, "files", "append", Context(root, "state", **options))


def lines(*numbers: int, folder: str = DAY) -> Lines:
    return [(folder, f'{{"n": {number}}}', number) for number in numbers]


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists of lines instead of data frames: two tasks each, which do all that they do in Spark's workers."""

    def stage(self: ArchiveSink, rows: Lines, staging: StatePath, batch: Batch) -> list[Staged]:
        return stage_lines(rows, staging, self.compression, Report.of(batch, self.label, self.on_error))

    monkeypatch.setattr(ArchiveSink, "_stage", stage)
    monkeypatch.setattr(archive_module, "drain", lambda rows: None)
    # hundreds of steps are tried: a call that is counted and does nothing is as good as one that waits for the disk
    monkeypatch.setattr(os, "fsync", lambda number: None)
    monkeypatch.setattr(archive_module, "_LONGEST_WAIT", 300.0)


def read(root: StatePath, folder: str) -> list[int]:
    """The numbers in a folder, as one who knows the rule of names reads them."""
    files, _ = sorted_out(names_in(root / folder))
    return sorted(
        json.loads(line)["n"]
        for file in files
        for line in gzip.decompress((root / folder / file.name).read_bytes()).splitlines()
    )


def visible(root: StatePath, folder: str) -> list[str]:
    return sorted(name for name in names_in(root / folder) if not name.startswith(("_", ".")))


def mark(root: Path, folder: str, name: str = "_SUCCESS") -> dict[str, Any] | None:
    file = root / "archive" / folder / name
    return dict(json.loads(file.read_text())) if file.exists() else None


def test_options_that_cannot_be_are_refused(tmp_path: Path) -> None:
    for wrong in ({"zone": "Mars/Olympus"}, {"position": ["_offset"]}, {"time": []}, {"level": 12}):
        with pytest.raises(ValueError, match=r"zone|position|time|level"):
            sink(**wrong)
    context = Context(tmp_path, "state")
    columns = ["topic", "value", "ts", "_partition", "_offset"]
    sink().check_rows(context, columns, "append", None)
    for action, code in (
        (lambda: sink().check_rows(context, columns, "update", None), "files-append-only"),
        (lambda: sink(value="vlaue").check_rows(context, columns, "append", None), "unknown-column"),
        (lambda: sink(path="gs://bucket/a").check(context), "archive-place"),
        (
            lambda: sink().check_rows(context, columns, "append", pa.schema([("ts", pa.list_(pa.int64()))])),
            "wrong-column-type",
        ),
    ):
        with pytest.raises(ProjectError) as refused:
            action()
        assert refused.value.code == code
    (tmp_path / "archive").write_text("a file")
    with pytest.raises(ProjectError) as refused:
        sink().check(context)
    assert refused.value.code == "not-a-folder"


def test_when_a_folder_is_over() -> None:
    def over(folder: str, zone: str = "UTC") -> str | None:
        end = ends(folder, zone)
        return None if end is None else datetime.fromtimestamp(end, UTC).isoformat()[:19]

    assert over(DAY) == "2026-02-01T00:00:00"
    assert over(DAY, "Asia/Kolkata") == "2026-01-31T18:30:00"
    assert over(f"{DAY}/hr=07") == "2026-01-31T08:00:00"
    assert over("orders/dt=unknown") is None


def test_a_day_that_is_over_is_merged_and_marked(without_spark: None, tmp_path: Path) -> None:
    one, root = sink(), tmp_path / "archive"
    for number in range(3):
        given: Any = lines(*range(number * 10, number * 10 + 10)) + lines(100 + number, folder=NEXT)
        one.write_batch(given, batch(tmp_path, number))
    assert len(visible(root, DAY)) == 6
    assert one.has_unpublished
    one.publish_caught_up(Context(tmp_path, "state"))
    assert not one.has_unpublished
    (name,) = visible(root, DAY)
    assert name == "backup-files-g1-00000000..00000002-0000.json.gz"
    found = mark(tmp_path, DAY)
    assert found is not None
    assert found["files"] == {name: 30}
    assert (found["records"], found["late"], found["bytes"]) == (30, 0, (root / DAY / name).stat().st_size)
    (file,), _ = sorted_out([name])
    parts = parts_of(root / DAY, file)
    assert [part.name for part in parts] == [
        f"backup-files-g1-0000000{b}-000{n}.json.gz" for b in range(3) for n in (0, 1)
    ]
    assert parts[0].positions == [[0, 0, 1], [0, 2, 1], [0, 4, 1], [0, 6, 1], [0, 8, 1]]
    assert read(root, DAY) == list(range(30))
    assert mark(tmp_path, NEXT) is not None
    assert not names_in(root / ".headrace/open")


def test_a_day_that_is_not_over_is_left_alone(
    without_spark: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = sink(finish_after="2h")
    given: Any = lines(1) + lines(2, folder="orders/dt=unknown")
    one.write_batch(given, batch(tmp_path))
    monkeypatch.setattr(archive_module, "now", lambda: (ends(DAY, "UTC") or 0) + 7199)
    assert not one.has_unpublished
    one.publish_caught_up(Context(tmp_path, "state"))
    assert mark(tmp_path, DAY) is None
    monkeypatch.setattr(archive_module, "now", lambda: (ends(DAY, "UTC") or 0) + 7200)
    # another process knows of it from the first batch on, and that a folder has no day never ends
    other = sink(finish_after="2h")
    nothing: Any = []
    other.write_batch(nothing, batch(tmp_path, 1))
    assert other.has_unpublished
    other.publish_caught_up(Context(tmp_path, "state"))
    assert mark(tmp_path, DAY) is not None
    assert names_in(tmp_path / "archive/.headrace/open") == ["orders,dt=unknown"]


def test_late_lines_are_written_counted_and_the_mark_comes_back(without_spark: None, tmp_path: Path) -> None:
    context, root = Context(tmp_path, "state"), tmp_path / "archive"
    one = sink()
    first: Any = lines(*range(10))
    one.write_batch(first, batch(tmp_path))
    one.publish_caught_up(context)
    (settled,) = visible(root, DAY)
    late: Any = lines(10, 11, 12)
    second = batch(tmp_path, 1)
    one.write_batch(late, second)
    assert second.tally.counts()[("backup", "files", "late")] == 3
    assert mark(tmp_path, DAY) is None
    assert mark(tmp_path, DAY, "_LATE") is not None
    one.publish_caught_up(context)
    found = mark(tmp_path, DAY)
    assert found is not None
    assert (found["records"], found["late"]) == (13, 3)
    assert settled in found["files"]
    assert found["files"]["backup-files-g1-00000001..00000001-0000.json.gz"] == 3
    assert mark(tmp_path, DAY, "_LATE") is None
    assert read(root, DAY) == list(range(13))


def test_merged_files_are_not_larger_than_wanted(without_spark: None, tmp_path: Path) -> None:
    one = sink(compression="none")
    for number in range(6):
        large: Any = [
            (DAY, json.dumps({"n": n, "text": "x" * 1000}), n) for n in range(number * 300, number * 300 + 300)
        ]
        one.write_batch(large, batch(tmp_path, number))
    one = sink(compression="none", merge_to=1)
    nothing: Any = []
    one.write_batch(nothing, batch(tmp_path, 6))
    one.publish_caught_up(Context(tmp_path, "state"))
    names = visible(tmp_path / "archive", DAY)
    assert names == [f"backup-files-g1-{a:08d}..{a + 2:08d}-0000.json" for a in (0, 3)]


class CrashError(Exception):
    """Stands for the death of the process."""


@pytest.fixture
def crash_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], pytest.MonkeyPatch]]:
    """Let the given one of all calls that touch the disk fail, and every later one too, as after a kill."""
    made: list[pytest.MonkeyPatch] = []

    def begin(call: int) -> pytest.MonkeyPatch:
        patch = pytest.MonkeyPatch()
        made.append(patch)
        calls = 0

        def failing(function: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any, **options: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls >= call:
                    raise CrashError
                return function(*args, **options)

            return run

        for module, name in ((os, "replace"), (os, "fsync"), (os, "link"), (shutil, "rmtree"), (shutil, "copyfileobj")):
            patch.setattr(module, name, failing(getattr(module, name)))
        patch.setattr(Path, "unlink", failing(Path.unlink))
        return patch

    yield begin
    for patch in made:
        patch.undo()


def test_a_crash_while_a_batch_is_written_loses_and_repeats_nothing(
    without_spark: None, tmp_path: Path, crash_at: Callable[[int], pytest.MonkeyPatch]
) -> None:
    before, given, after = (lines(*range(first, first + 10)) for first in (0, 10, 20))
    one, call, crashed = sink(), 0, True
    one.write_batch(before, batch(tmp_path / "0", 0))  # type: ignore[arg-type]
    one.publish_caught_up(Context(tmp_path / "0", "state"))  # so that the day has a mark, which has to go
    while crashed:
        call += 1
        home = shutil.copytree(tmp_path / "0", tmp_path / str(call))
        root = home / "archive"
        one = sink()
        patch = crash_at(call)
        try:
            one.write_batch(given, batch(home, 1))  # type: ignore[arg-type]
            crashed = False
        except CrashError:
            pass
        patch.undo()
        seen = read(root, DAY)
        assert len(seen) == len(set(seen))
        assert set(range(10)) <= set(seen) <= set(range(20))
        if mark(home, DAY) is not None:
            assert seen == list(range(10)), "a day with more lines than its mark says"
        one = sink()
        one.write_batch(given, batch(home, 1))  # type: ignore[arg-type]
        one.write_batch(after, batch(home, 2))  # type: ignore[arg-type]
        assert read(root, DAY) == list(range(30)), f"after a crash at step {call}"
        one.publish_caught_up(Context(home, "state"))
        found = mark(home, DAY)
        assert found is not None
        assert (found["records"], found["late"]) == (30, 20)
        assert not names_in(root / ".headrace/staging")
    assert call > 15


def test_a_crash_while_a_day_is_finished_loses_and_repeats_nothing(
    without_spark: None, tmp_path: Path, crash_at: Callable[[int], pytest.MonkeyPatch]
) -> None:
    one, call, crashed = sink(), 0, True
    for number in range(3):
        some: Any = lines(*range(number * 10, number * 10 + 10))
        one.write_batch(some, batch(tmp_path / "0", number))
    while crashed:
        call += 1
        home = shutil.copytree(tmp_path / "0", tmp_path / str(call))
        root = home / "archive"
        one = sink()
        one.write_batch([], batch(home, 3))  # type: ignore[arg-type]
        patch = crash_at(call)
        try:
            one.publish_caught_up(Context(home, "state"))
            crashed = False
        except CrashError:
            pass
        patch.undo()
        assert read(root, DAY) == list(range(30)), f"what a reader sees after a crash at step {call}"
        if crashed and mark(home, DAY) is None:
            (root / DAY / "._SUCCESS.1.2").write_text("half of it, by a process that is gone")
        one = sink()
        one.write_batch([], batch(home, 4))  # type: ignore[arg-type]
        one.publish_caught_up(Context(home, "state"))
        assert read(root, DAY) == list(range(30))
        found = mark(home, DAY)
        assert found is not None
        assert found["records"] == 30
        assert sorted(found["files"]) == visible(root, DAY)
        assert len(visible(root, DAY)) == 1
        assert len(names_in(root / DAY)) == 3, "nothing is left beside the file, what it consists of and the mark"
        assert not names_in(root / ".headrace/open")
    assert call > 15


def test_what_a_rewind_takes_back_goes_also_from_merged_files(
    without_spark: None, tmp_path: Path, crash_at: Callable[[int], pytest.MonkeyPatch]
) -> None:
    one, call, crashed = sink(), 0, True
    for number in range(4):
        some: Any = lines(*range(number * 10, number * 10 + 10))
        one.write_batch(some, batch(tmp_path / "0", number))
    one.publish_caught_up(Context(tmp_path / "0", "state"))
    one.write_batch(lines(50, folder=NEXT), batch(tmp_path / "0", 4))  # type: ignore[arg-type]
    while crashed:
        call += 1
        home = shutil.copytree(tmp_path / "0", tmp_path / str(call))
        root, context = home / "archive", Context(home, "state")
        rewind = Rewind("backup", "files", context, ("g1", 1), 20)
        assert (
            one.rewind_effect(rewind, True) == "what later batches wrote goes, from 2 files; 20 records are read again"
        )
        patch = crash_at(call)
        try:
            sink().take_back(rewind)
            crashed = False
        except CrashError:
            seen = read(root, DAY)
            assert set(range(20)) <= set(seen)
            assert len(seen) == len(set(seen))
        patch.undo()
        sink().take_back(rewind)
        assert read(root, DAY) == list(range(20))
        assert visible(root, NEXT) == []
        assert mark(home, DAY) is None
        other = sink()
        other.write_batch(lines(*range(20, 40)), batch(home, 0, "g2"))  # type: ignore[arg-type]
        other.publish_caught_up(context)
        assert read(root, DAY) == list(range(40))
        found = mark(home, DAY)
        assert found is not None
        assert found["records"] == 40
    assert call > 8
    replayed: Any = lines(60)
    sink().write_batch(replayed, batch(home, 0, "replay-1"))
    with pytest.raises(ProjectError) as refused:
        sink().rewind_effect(Rewind("backup", "files", context, ("g1", 1)), True)
    assert refused.value.code == "rewind-replayed"


PLACED = """
SELECT * FROM VALUES
  ('orders', 'number',   '1769860800000', NULL,       0, 10),
  ('orders', 'text',     '2026-01-31T12:00:00.000Z', NULL, 0, 11),
  ('orders', 'seconds',  '2026-01-31T23:30:00+05:30', NULL, 0, 13),
  ('orders', 'fallback', 'yesterday', TIMESTAMP '2026-02-01 20:00:00', 1, 5),
  ('orders', 'none',     NULL, NULL, 1, 6),
  ('orders', 'too far',  '99999999999999999', NULL, 1, 7),
  ('orders', 'no day',   '12:30', NULL, 1, 8),
  ('orders', 'tomorrow', '253402300799999', NULL, 1, 9),
  ('refunds', 'other',   '1769860800000', NULL, 0, 0),
  ('../up', 'bad topic', '1769860800000', NULL, 0, 1),
  (NULL, 'no topic',     '1769860800000', NULL, 0, 2),
  ('orders', 'two\\nlines', '1769860800000', NULL, 0, 3),
  ('orders', NULL,       '1769860800000', NULL, 0, 4)
AS rows(topic, value, ts, arrived, _partition, _offset)
"""


@pytest.mark.spark
def test_each_row_comes_into_the_folder_of_its_time(spark: Any, desk: Any) -> None:
    """Days in UTC and elsewhere, hours, the compressions, and what can be read of them by others."""
    root = desk.folder / "archive"
    rows = spark.sql(PLACED).coalesce(1)

    def folders(**options: Any) -> dict[str, list[str]]:
        one = sink(time=["ts", "arrived"], **options)
        one.write_batch(rows, desk.batch())
        one.write_batch(rows, desk.batch())
        place = desk.folder / one.path
        found = {str(file.parent.relative_to(place)): file for file in place.glob("*/dt=*/**/flow-*")}
        return {name: [row.value for row in spark.read.text(str(found[name])).collect()] for name in sorted(found)}

    assert folders() == {
        "orders/dt=2026-01-31": ["number", "text", "seconds"],
        "orders/dt=2026-02-01": ["fallback"],
        "orders/dt=unknown": ["none", "too far", "no day", "tomorrow"],
        "refunds/dt=2026-01-31": ["other"],
    }
    assert folders(path="kolkata", zone="Asia/Kolkata", compression="zstd")["orders/dt=2026-02-02"] == ["fallback"]
    assert folders(path="hours", hours=True, compression="none") == {
        "orders/dt=2026-01-31/hr=12": ["number", "text"],
        "orders/dt=2026-01-31/hr=18": ["seconds"],
        "orders/dt=2026-02-01/hr=20": ["fallback"],
        "orders/dt=unknown": ["none", "too far", "no day", "tomorrow"],
        "refunds/dt=2026-01-31/hr=12": ["other"],
    }
    (file,), _ = sorted_out(names_in(root / "orders/dt=2026-01-31"))
    (part,) = parts_of(root / "orders/dt=2026-01-31", file)
    assert part.positions == [[0, 10, 2], [0, 13, 1]]
    reasons = [(letter["reason"], letter["value"]) for letter in desk.letters()]
    wanted = [
        ("bad-topic", b"bad topic"),
        ("bad-topic", b"no topic"),
        ("not-a-line", b"two\nlines"),
        ("no-value", None),
    ]
    assert sorted(reasons[:4], key=str) == sorted(wanted, key=str)
    with pytest.raises(Exception, match="sink-row-refused"):
        sink(path="strict", time="arrived", on_error="fail").write_batch(rows, desk.batch())


@pytest.mark.service
def test_the_same_on_an_object_store(without_spark: None, tmp_path: Path, s3: S3) -> None:
    s3.make_bucket("archive-test")
    root = archive_root("s3://archive-test/all", s3.store)
    context = Context(tmp_path, "state", store=s3.store)

    def write(one: ArchiveSink, number: int, *numbers: int) -> None:
        one.write_batch(lines(*numbers), batch(tmp_path, number, store=s3.store))  # type: ignore[arg-type]

    one = sink(path="s3://archive-test/all")
    one.check(context)
    for number in range(3):
        write(one, number, *range(number * 10, number * 10 + 10))
        write(one, number, *range(number * 10, number * 10 + 10))
    assert read(root, DAY) == list(range(30))
    one.publish_caught_up(context)
    assert visible(root, DAY) == ["backup-files-g1-00000000..00000002-0000.json.gz"]
    write(one, 3, 30, 31)
    assert not (root / DAY / "_SUCCESS").is_file()
    one.publish_caught_up(context)
    found = json.loads((root / DAY / "_SUCCESS").read_bytes())
    assert (found["records"], found["late"]) == (32, 2)
    assert not (root / DAY / "_LATE").is_file()
    sink(path="s3://archive-test/all").take_back(Rewind("backup", "files", context, ("g1", 0)))
    assert read(root, DAY) == list(range(10))


def trial(request: pytest.FixtureRequest, folder: Path) -> Trial:
    def notes() -> list[str]:
        files = [path for path in (folder / "archive").rglob("*.json.gz") if not path.name.startswith(("_", "."))]
        return [line for file in files for line in gzip.decompress(file.read_bytes()).decode().splitlines()]

    return Trial(lambda: sink(time="at", topic="region", value="note", position=[]), notes)
