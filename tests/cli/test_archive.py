"""`headrace archive`: what is there, proof that each record is there once, replay into a real topic."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Run
from tests.sinks.archives import Lines, write_archive
from tests.system.conftest import consume

from headrace.core.errors import Exit
from headrace.core.files.state_files import names_in
from headrace.engine.replay import archive_replay
from headrace.sinks.archive.files import ArchivePart, DataFile, sorted_out
from headrace.sinks.archive.read import coverage, folders, located, read_parts
from headrace.sinks.archive.upkeep import finish_folder
from headrace.testing.services import Kafka
from headrace.testing.services.daemon import await_true

PROJECT = """\
project: shop
streams:
  orders: {source: {type: kafka, brokers: "BROKERS", pattern: "shop-.*"}, format: {type: raw, as: string}}
  files: {source: {type: files, path: in}, format: {type: raw, as: string}}
flows:
  backup:
    sql: SELECT _topic AS topic, value, _timestamp, _partition, _offset FROM orders
    sinks: [{type: archive, path: archive, time: _timestamp, position: [_partition, _offset]}]
"""


def lines(first: int, count: int, day: str, topic: str = "orders") -> Lines:
    numbers = range(first, first + count)
    return [(f"{topic}/dt={day}", json.dumps({"id": n, "who": {"name": f"w{n}"}}), n // 2) for n in numbers]


@pytest.fixture
def folder(write_project: Callable[[str, str], Path]) -> Path:
    made = write_project("shop", PROJECT.replace("BROKERS", "127.0.0.1:9"))
    write_archive(made / "archive", lines(0, 10, "2026-01-30") + lines(10, 10, "2026-01-31"), 0)
    write_archive(made / "archive", lines(20, 10, "2026-01-31") + lines(30, 4, "2026-02-01", "refunds"), 1, "zstd")
    finish_folder(made / "archive", "orders/dt=2026-01-30", "backup-archive", 1 << 20)
    return made


def test_show_says_what_is_there(headrace: Run, folder: Path) -> None:
    said = headrace("archive", "show", "-p", folder, "--json").data
    assert [(one["folder"], one["state"], one["records"], one["files"]) for one in said["folders"]] == [
        ("orders/dt=2026-01-30", "finished", 10, 1),
        ("orders/dt=2026-01-31", "open", 20, 4),
        ("refunds/dt=2026-02-01", "open", 4, 2),
    ]
    assert "orders/dt=2026-01-31" in headrace("archive", "show", "backup", "-p", folder, "--to", "2026-01-31").out
    assert headrace("archive", "show", "-p", folder, "--from", "2026-02-02", "--json").data["folders"] == []


def test_check_finds_what_is_there_twice_and_what_is_broken(headrace: Run, folder: Path) -> None:
    done = headrace("archive", "check", "-p", folder, "--json")
    assert (done.code, done.data["ok"]) == (Exit.OK, True)
    assert [(one["topic"], one["partition"], one["records"], one["absent"]) for one in done.data["partitions"]] == [
        ("orders", 0, 15, 0),
        ("orders", 1, 15, 0),
        ("refunds", 0, 2, 0),
        ("refunds", 1, 2, 0),
    ]
    write_archive(folder / "archive", lines(20, 2, "2026-01-31"), 7)
    done = headrace("archive", "check", "-p", folder, "--topic", "orders", "--json")
    assert (done.code, done.data["ok"], [one["repeated"] for one in done.data["partitions"]]) == (1, False, [1, 1])


def test_positions_are_counted_by_partition() -> None:
    parts = [ArchivePart("a", 1, 6, [[0, 10, 3], [1, 0, 3]]), ArchivePart("b", 1, 4, [[0, 12, 2], [0, 20, 2]])]
    first, second = coverage(parts)
    assert (first.records, first.first, first.last, first.repeated, first.absent) == (7, 10, 21, 1, 6)
    assert (second.records, second.repeated, second.absent) == (3, 0, 0)


def test_wrong_calls_are_refused(headrace: Run, folder: Path) -> None:
    def code(*arguments: object) -> str:
        return str(headrace("archive", *arguments, "-p", folder, "--json").error["error"]["code"])

    days = ("--from", "2026-01-30", "--to", "2026-01-31")
    assert code("show", "--from", "soon") == "usage"
    assert code("show", "nothing") == "no-such-archive"
    wanted = ("replay", "--topic", "orders", "--into", "again")
    assert code(*wanted, "--from", "2026-01-31", "--to", "2026-01-30") == "usage"
    assert code(*wanted, *days, "--stream", "oders") == "unknown-stream"
    assert code(*wanted, *days, "--stream", "files") == "replay-needs-kafka"


def test_parts_are_read_from_wherever_they_are(folder: Path) -> None:
    """Also when small files are merged between a look and the reading of what was found."""
    root = folder / "archive"
    assert folders(root, [], None, None) == ["orders/dt=2026-01-30", "orders/dt=2026-01-31", "refunds/dt=2026-02-01"]
    day = root / "orders/dt=2026-01-31"
    names = list(located(day))
    reading = read_parts(day, names)
    found = [next(reading)]
    write_archive(root, lines(40, 4, "2026-01-31"), 2)
    finish_folder(root, "orders/dt=2026-01-31", "backup-archive", 1 << 20)
    assert len(sorted_out(names_in(day))[0]) == 3, "the two of zstd, the two of gzip, the two written last"
    found += reading
    assert [part.name for part, _ in found] == names
    assert sorted(json.loads(line)["id"] for _, some in found for line in some) == list(range(10, 30))
    file = DataFile.of(names[0])
    assert file is not None
    assert not (day / file.name).exists()


@pytest.mark.service
def test_days_are_replayed_into_a_topic_once(
    headrace: Run, folder: Path, kafka: Kafka, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "headrace.yaml").write_text(PROJECT.replace("BROKERS", kafka.address))
    monkeypatch.setattr(archive_replay, "_PORTION", 7)
    into = topic(partitions=2)
    wanted = ("archive", "replay", "-p", folder, "--topic", "orders", "--into", into, "--key", "who.name", "--json")
    days = ("--from", "2026-01-30", "--to", "2026-01-31")
    missing = headrace(*wanted[:6], "--into", "nowhere", *days, "--json")
    assert json.loads(missing.err.splitlines()[-1])["error"]["code"] == "topic-missing"
    planned = headrace(*wanted, *days, "--dry-run").data
    assert (planned["records"], planned["sent"], planned["done"]) == (30, 0, False)

    def ids() -> list[int]:
        return sorted(json.loads(message.value())["id"] for message in consume(kafka, into))

    # the second of its transactions fails, and the small files are merged before it is tried again
    send = archive_replay.ArchiveReplayer._send

    def fail(self: Any, replay: Any, number: int, parts: Any) -> int:
        if number:
            raise KeyboardInterrupt
        return send(self, replay, number, parts)

    with monkeypatch.context() as patch:
        patch.setattr(archive_replay.ArchiveReplayer, "_send", fail)
        assert headrace(*wanted, *days).code == Exit.INTERRUPTED
    # a transaction that was committed is marked as such in each partition a little later
    assert await_true(lambda: ids() == list(range(10)), 30)
    finish_folder(folder / "archive", "orders/dt=2026-01-31", "backup-archive", 1 << 20)
    done = headrace(*wanted, *days)
    assert (done.code, done.data["sent"], done.data["records"]) == (Exit.OK, 20, 30)
    assert "30 of 30" in done.err
    assert await_true(lambda: ids() == list(range(30)), 30)
    assert {message.key() for message in consume(kafka, into)} == {f"w{n}".encode() for n in range(30)}
    repeated = headrace(*wanted, *days).data
    assert (repeated["already"], repeated["sent"]) == (True, 0)
    assert headrace(*wanted, *days, "--again").data["sent"] == 30
    assert await_true(lambda: ids() == sorted([*range(30), *range(30)]), 30)
    empty = headrace(*wanted, "--from", "2027-01-01", "--to", "2027-01-01")
    assert (empty.code, empty.error["error"]["code"]) == (Exit.NOT_FOUND, "archive-empty")
