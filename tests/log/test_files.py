"""A log in files: segments are there whole, once, in order, and can be cut off."""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.log.kit import ORDERS, changes, held, only

from headrace.core.files.state_files import StatePath, write_atomically
from headrace.log.files import FileLog
from headrace.log.log import LogCutError, LogDamagedError, Mark, Segment


@pytest.fixture
def log(root: StatePath) -> FileLog:
    return FileLog(root / "orders" / "v1", ORDERS)


def mark(batch: int, generation: str = "g1", writer: str = "orders/endpoint") -> Mark:
    return Mark(writer, generation, batch)


def again(log: FileLog) -> FileLog:
    """The same log, opened by another process."""
    return FileLog(log._commits.parent, ORDERS)


def test_segments_are_read_in_the_order_they_were_committed(log: FileLog) -> None:
    assert (log.begin(), log.end(), log.after(0)) == (1, 0, [])
    first = log.commit(mark(0), [changes((1, "new"), (2, "new")), changes((3, "new"))])
    second = log.commit(mark(1), [changes((1, "paid"))])
    assert first is not None
    assert second is not None
    assert (first.position, first.changes, second.position, second.mark) == (1, 3, 2, mark(1))
    for one in (log, again(log)):
        assert (one.begin(), one.end()) == (1, 2)
        assert one.after(0) == [first, second]
        assert one.after(0, limit=1) == [first]
        assert one.after(1) == [second]
        assert one.after(2) == []
        assert held(one) == [[(1, "new"), (2, "new"), (3, "new")], [(1, "paid")]]


def test_a_batch_that_comes_again_is_there_once(log: FileLog) -> None:
    log.commit(mark(0), [changes((1, "new"))])
    log.commit(mark(1), [changes((1, "paid"))])
    assert log.has(mark(1))
    assert not log.has(mark(2))
    assert log.commit(mark(1), [changes((1, "paid"))]) is None
    assert again(log).commit(mark(0), [changes((1, "new"))]) is None
    assert log.commit(mark(0, generation="g2"), [changes((1, "new"))]) is not None
    assert log.commit(mark(0, writer="other/endpoint"), [changes((9, "new"))]) is not None
    assert held(again(log)) == [[(1, "new")], [(1, "paid")], [(1, "new")], [(9, "new")]]


def test_a_batch_without_changes_leaves_nothing(log: FileLog) -> None:
    assert log.commit(mark(0), []) is None
    assert log.commit(mark(0), [changes()]) is None
    assert log.end() == 0


def test_what_tasks_stage_counts_once_it_is_committed(log: FileLog) -> None:
    staging = pickle.loads(pickle.dumps(log.staging(mark(0))))  # noqa: S301  # as Spark does
    second = staging.stage(1, [changes((2, "new"))])
    staging.stage(0, [changes((1, "of an attempt that died"))])
    first = staging.stage(0, [changes((1, "new"))])
    assert log.end() == 0
    assert log.commit_parts(mark(0), [*first, *second]) is not None
    staging.stage(0, [changes((1, "of an attempt that came too late"))])
    assert held(again(log)) == [[(1, "new"), (2, "new")]]


def test_a_long_batch_is_staged_in_pieces(log: FileLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.log.parts._PART_BYTES", 2_000)
    batches = [changes(*((number, os.urandom(8).hex()) for number in range(at, at + 50))) for at in range(0, 500, 50)]
    segment = log.commit(mark(0), batches)
    assert segment is not None
    assert len(segment.parts) > 2
    assert segment.changes == 500
    assert [number for number, _ in held(log)[0]] == list(range(500))


def test_what_is_cut_off_is_gone_and_still_known(log: FileLog) -> None:
    for batch in range(4):
        log.commit(mark(batch), [changes((batch, "new"))])
    late = again(log)
    gone, kept = late.after(0)[1:3]
    log.cut(3)
    assert (log.begin(), log.end()) == (4, 4)
    assert held(log, 3) == [[(3, "new")]]
    with pytest.raises(LogCutError):
        log.after(2)
    for segment in (gone, kept):
        with pytest.raises(LogCutError):
            list(late.changes(segment))
    log.cut(4)
    log.cut(2)
    for one in (log, again(log)):
        assert (one.begin(), one.end(), one.after(4)) == (5, 4, [])
        assert one.commit(mark(3), [changes((3, "new"))]) is None
    segment = again(log).commit(mark(4), [changes((4, "new"))])
    assert segment is not None
    assert segment.position == 5
    assert [segment.position for segment in log.after(4)] == [5]
    with pytest.raises(ValueError, match="up to 5"):
        log.cut(6)


def test_a_cut_leaves_only_what_is_needed(log: FileLog) -> None:
    for batch in range(3):
        log.commit(mark(batch), [changes((batch, "new"))])
    log.staging(mark(1)).stage(7, [changes((1, "of an attempt that was not needed"))])
    log.staging(mark(3)).stage(0, [changes((3, "not yet committed"))])
    log.cut(2)
    names = sorted(file.name for file in log._parts.iterdir())
    assert [name.rsplit("-", 4)[1] for name in names] == ["000000000002", "000000000003"]
    assert [file.name for file in log._commits.iterdir()] == ["000000000003.json"]
    assert [file.name for file in log._cuts.iterdir()] == ["000000000002.json"]


def test_what_was_staged_long_ago_and_never_committed_is_removed(tmp_path: Path) -> None:
    log = FileLog(tmp_path, ORDERS)
    log.staging(mark(5, generation="g0")).stage(0, [changes((1, "lost with its generation"))])
    (tmp_path / "parts" / ".half.arrow.1.2").write_bytes(b"half")
    for file in (tmp_path / "parts").iterdir():
        os.utime(file, (time.time() - 90_000,) * 2)
    log.commit(mark(0), [changes((1, "new"))])
    log.commit(mark(1), [changes((2, "new"))])
    for file in (tmp_path / "parts").glob("*-g1-*"):
        os.utime(file, (time.time() - 90_000,) * 2)
    log.cut(1)
    assert "-g1-" in only(list((tmp_path / "parts").iterdir())).name
    assert held(log, 1) == [[(2, "new")]]


def test_damage_to_a_piece_or_a_commit_is_noticed(root: StatePath) -> None:
    for number, spoil in enumerate((_flip, _shorten, _remove)):
        log = FileLog(root / str(number), ORDERS)
        log.commit(mark(0), [changes((1, "new"), (2, "new"))])
        spoil(only(list(log._parts.iterdir())))
        with pytest.raises(LogDamagedError):
            next(log.changes(log.after(0)[0]))
    for number, spoil in enumerate((_flip, _shorten)):
        log = FileLog(root / f"commit{number}", ORDERS)
        log.commit(mark(0), [changes((1, "new"))])
        spoil(only(list(log._commits.iterdir())))
        with pytest.raises(LogDamagedError):
            again(log).after(0)
        with pytest.raises(LogDamagedError):
            again(log).commit(mark(1), [changes((1, "new"))])


def _flip(file: StatePath) -> None:
    content = bytearray(file.read_bytes())
    at = content.index(b'"position": 1') + 12 if content.startswith(b"{") else len(content) // 2
    content[at] ^= 1
    write_atomically(file, bytes(content))


def _shorten(file: StatePath) -> None:
    write_atomically(file, file.read_bytes()[:-20])


def _remove(file: StatePath) -> None:
    file.unlink()


def test_writers_who_race_each_get_a_position(root: StatePath) -> None:
    """Two at a time, both also try the same marks, while a third cuts off what it has read."""
    writers, batches = 3, 12
    taken: list[list[Segment | None]] = [[] for _ in range(writers)]
    seen: list[tuple[int, str]] = []

    def write(number: int) -> None:
        log = FileLog(root, ORDERS)
        for batch in range(batches):
            taken[number].append(log.commit(mark(batch, writer=f"w{number}"), [changes((batch, f"w{number}"))]))
            log.commit(mark(batch, writer="shared"), [changes((batch, "shared"))])

    def follow() -> None:
        log, position = FileLog(root, ORDERS), 0
        deadline = time.monotonic() + 30
        while len(seen) < (writers + 1) * batches and time.monotonic() < deadline:
            for segment in log.after(position):
                seen.extend((row["id"], row["state"]) for batch in log.changes(segment) for row in batch.to_pylist())
                assert segment.position == position + 1
                position = segment.position
                if position % 5 == 0:
                    log.cut(position - 2)

    targets: list[Callable[[], None]] = [lambda number=number: write(number) for number in range(writers)]  # type: ignore[misc]
    threads = [threading.Thread(target=target) for target in (*targets, follow)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # one whose segment was cut off before it looked again is told that its batch is there
    positions = [segment.position for segments in taken for segment in segments if segment is not None]
    assert len(positions) == len(set(positions))
    expected = [(batch, writer) for batch in range(batches) for writer in ("shared", "w0", "w1", "w2")]
    assert sorted(seen) == sorted(expected)


def test_who_slept_through_commits_and_a_cut_commits_at_the_end(
    root: StatePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks for the end, and goes on when others have committed there, and cut that off."""
    from headrace.log import files

    log, other = FileLog(root, ORDERS), FileLog(root, ORDERS)
    log.commit(mark(0), [changes((0, "first"))])
    write = files.write_new

    def slept(file: StatePath, content: bytes) -> bool:
        monkeypatch.setattr(files, "write_new", write)
        other.commit(mark(0, writer="other"), [changes((1, "other"))])
        other.commit(mark(1, writer="other"), [changes((2, "other"))])
        other.cut(3)
        return write(file, content)

    monkeypatch.setattr(files, "write_new", slept)
    segment = log.commit(mark(1), [changes((3, "late"))])
    assert segment is not None
    assert segment.position == 4
    other.commit(mark(2, writer="other"), [changes((4, "other"))])
    other.cut(4)
    assert held(other, 4) == [[(4, "other")]]
    with pytest.raises(LogCutError):
        FileLog(root, ORDERS).after(1)
    assert log.commit(mark(1), [changes((3, "late"))]) is None


class _Model:
    """What a log is: a list, and the greatest batch of each writer."""

    def __init__(self) -> None:
        self.segments: list[list[tuple[int, str]]] = []
        self.newest: dict[tuple[str, str], int] = {}
        self.cut = 0

    def commit(self, made: Mark, rows: list[tuple[int, str]]) -> bool:
        key = made.writer, made.generation
        if not rows or self.newest.get(key, -1) >= made.batch:
            return False
        self.newest[key] = made.batch
        self.segments.append(rows)
        return True


_ROWS = st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["a", "b"])), max_size=3)
_COMMITS = st.tuples(st.sampled_from(["f/a", "f/b", "f-a"]), st.sampled_from(["g1", "g2"]), st.integers(0, 3), _ROWS)
_STEPS = st.lists(st.one_of(_COMMITS, st.floats(0, 1), st.none()), max_size=14)


@settings(max_examples=40)
@given(steps=_STEPS)
def test_a_log_is_a_list_that_knows_its_batches(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, int, list[tuple[int, str]]] | float | None]
) -> None:
    """Commits (some again), cuts, and other processes that open it, in any order."""
    folder, model = tmp_path_factory.mktemp("log"), _Model()
    log = FileLog(folder, ORDERS)
    for step in steps:
        if step is None:
            log = FileLog(folder, ORDERS)
        elif isinstance(step, float):
            position = round(step * len(model.segments))
            if position:
                log.cut(position)
                model.cut = max(model.cut, position)
        else:
            writer, generation, batch, rows = step
            made = mark(batch, generation, writer)
            assert (log.commit(made, [changes(*rows)]) is not None) == model.commit(made, rows)
        assert (log.begin(), log.end()) == (model.cut + 1, len(model.segments))
        assert held(log, model.cut) == model.segments[model.cut :]
