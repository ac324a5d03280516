"""Positions on a real broker: lag that other tools agree with, moves compared with an offline recompute."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from tests.system.conftest import RunProject, consume

from headrace.cli.main import main
from headrace.core.errors import Exit
from headrace.engine.positions.consumer_groups import GroupCommitter
from headrace.engine.positions.positions import PositionLog
from headrace.engine.state.state import StateDir
from headrace.plan.planner import make_plan
from headrace.project.loader import load

if TYPE_CHECKING:
    from headrace.testing.services import Kafka

pytestmark = [pytest.mark.spark, pytest.mark.service]

START = 1_767_225_600  # 2026-01-01T00:00:00Z
FLOWS = ("copy", "counts")
Event = dict[str, Any]
Command = Callable[..., Any]


@pytest.fixture
def headrace(capsys: pytest.CaptureFixture[str]) -> Command:
    """A command that must succeed; its JSON."""

    def run(*arguments: object, code: int = Exit.OK) -> Any:
        capsys.readouterr()
        done = main([*map(str, arguments), "--json"])
        captured = capsys.readouterr()
        assert done == code, captured.err
        return json.loads(captured.out) if captured.out else json.loads(captured.err.splitlines()[-1])

    return run


def events(first: int, count: int) -> list[Event]:
    """One event a second, with keys and amounts that make every window different."""
    return [
        {"id": n, "who": f"w{n % 3}", "amount": n % 17, "at": (START + n) * 1000} for n in range(first, first + count)
    ]


def produce_at(kafka: Kafka, topic: str, rows: Sequence[Event]) -> None:
    """Write events; the time of a record is that of its event."""
    producer = Producer({"bootstrap.servers": kafka.address, "linger.ms": 20})
    for row in rows:
        producer.produce(topic, json.dumps(row).encode(), key=str(row["id"]).encode(), timestamp=row["at"])
    assert producer.flush(30) == 0


def project(folder: Path, kafka: Kafka, source: str, copies: str, counts: str) -> Path:
    def sinks(name: str, target: str) -> str:
        return f"""
      - {{type: lake, path: lake/{name}}}
      - {{type: files, path: out/{name}, contains: json}}
      - {{type: kafka, brokers: {kafka.address}, topic: {target}, delivery: exactly_once}}"""

    (folder / "headrace.yaml").write_text(f"""
project: moves
streams:
  events:
    source: {{type: kafka, brokers: {kafka.address}, topic: {source}}}
    format: {{type: json, columns: "id bigint, who string, amount bigint, at bigint"}}
    event_time: {{column: at, watermark: 1s}}
flows:
  watched:
    sql: SELECT id FROM events
    sinks: [noop]
  copy:
    sql: SELECT id, who, amount FROM events
    sinks:{sinks("copy", copies)}
  counts:
    sql: |
      SELECT unix_timestamp(window.start) AS since, who, count(*) AS n, sum(amount) AS total
      FROM events GROUP BY window(at, '10 seconds'), who
    sinks:{sinks("counts", counts)}
""")
    return folder


def bag(rows: Sequence[Event]) -> Counter[str]:
    return Counter(json.dumps(row, sort_keys=True) for row in rows)


def copied(rows: Sequence[Event]) -> Counter[str]:
    return bag([{name: row[name] for name in ("id", "who", "amount")} for row in rows])


def windows(rows: Sequence[Event]) -> Counter[str]:
    """The windows that are closed, recomputed from the events alone."""
    closed = max(row["at"] for row in rows) // 1000 - 1
    found: dict[tuple[int, str], list[int]] = {}
    for row in rows:
        since = row["at"] // 1000 // 10 * 10
        if since + 10 <= closed:
            found.setdefault((since, row["who"]), []).append(row["amount"])
    return bag([{"since": k[0], "who": k[1], "n": len(v), "total": sum(v)} for k, v in found.items()])


def in_lake(folder: Path, name: str) -> Counter[str]:
    from deltalake import DeltaTable

    return bag(DeltaTable(str(folder / "lake" / name)).to_pyarrow_table().to_pylist())


def in_files(folder: Path, name: str) -> Counter[str]:
    files = (folder / "out" / name).glob("*.json")
    return bag([json.loads(line) for file in files for line in file.read_text().splitlines()])


def in_topic(kafka: Kafka, topic: str) -> Counter[str]:
    return bag([json.loads(message.value()) for message in consume(kafka, topic)])


def test_lag_is_what_other_tools_say(
    tmp_path: Path, kafka: Kafka, topic: Callable[..., str], run_project: RunProject, headrace: Command
) -> None:
    source = topic(partitions=3, retention_ms="-1")
    folder = project(tmp_path, kafka, source, source, source)
    (before,) = headrace("offsets", "show", "-p", folder, "watched")["flows"]
    assert (before["lag"], before["generation"], before["partitions"][0]["committed"]) == (None, None, None)
    produce_at(kafka, source, events(0, 100))
    run_project(folder, "watched")
    loaded = load(folder)
    (flow,) = make_plan(loaded, ("watched",)).flows
    state = StateDir.of(loaded.context)
    group, log = GroupCommitter("moves", loaded.context, state), PositionLog(state)
    for observer in (group, log):
        observer.batch_done(flow, {"sources": []})
        observer.close()
    produce_at(kafka, source, events(100, 50))

    admin = AdminClient({"bootstrap.servers": kafka.address})
    asked = [ConsumerGroupTopicPartitions("headrace.moves.watched")]
    committed = admin.list_consumer_group_offsets(asked)["headrace.moves.watched"].result().topic_partitions
    latest = admin.list_offsets({TopicPartition(source, p): OffsetSpec.latest() for p in range(3)})
    ends = {part.partition: answer.result().offset for part, answer in latest.items()}
    independent = {part.partition: (part.offset, ends[part.partition] - part.offset) for part in committed}

    (said,) = headrace("offsets", "show", "-p", folder, "watched")["flows"]
    assert {row["partition"]: (row["committed"], row["lag"]) for row in said["partitions"]} == independent
    assert said["lag"] == 50
    assert said["groups"] == {"events": "headrace.moves.watched"}
    assert said["lag_s"] > 86_400, "the oldest unread event is of January 2026"
    assert said["rate_per_s"] == 0
    run_project(folder, "watched")
    (done,) = headrace("offsets", "show", "-p", folder, "watched")["flows"]
    assert (done["lag"], done["lag_s"]) == (0, 0)
    assert done["rate_per_s"] > 0


def test_moving_to_a_date_and_to_a_savepoint_and_back(
    tmp_path: Path, kafka: Kafka, topic: Callable[..., str], run_project: RunProject, headrace: Command
) -> None:
    source = topic(partitions=2, retention_ms="-1")  # the events are old already
    copies, counts = topic(partitions=2), topic()
    folder = project(tmp_path, kafka, source, copies, counts)
    early, late = events(0, 95), events(95, 60)
    produce_at(kafka, source, early)
    run_project(folder, *FLOWS)
    saved = {flow: headrace("savepoint", "create", "-p", folder, flow, "before-late") for flow in FLOWS}
    assert sum(saved["copy"]["positions"]["events"][source].values()) == 95
    produce_at(kafka, source, late)
    run_project(folder, *FLOWS)
    everything = [*early, *late]
    closed_late = windows(everything) - windows(early)
    generations = {flow: StateDir(folder / ".headrace").current(flow).id for flow in FLOWS}

    # back to the savepoint: what was written since is taken back where that can be done, and written again
    for flow in FLOWS:
        plan = headrace("rewind", "-p", folder, flow, "--to", "before-late", "--replace", "--yes")
        assert plan["records_again"] == 60
    assert in_lake(folder, "copy") == in_files(folder, "copy") == copied(early)
    assert in_lake(folder, "counts") == in_files(folder, "counts") == windows(early)
    run_project(folder, *FLOWS)
    for name, wanted in (("copy", copied(everything)), ("counts", windows(everything))):
        assert in_lake(folder, name) == in_files(folder, name) == wanted
    assert in_topic(kafka, copies) == copied(everything) + copied(late)
    assert in_topic(kafka, counts) == windows(everything) + closed_late

    # and back again to where the first life of the flows had come, with its state
    for flow, generation in generations.items():
        plan = headrace("rewind", "-p", folder, flow, "--to", generation, "--replace", "--yes")
        assert plan["records_again"] == 0
    more = events(155, 40)
    produce_at(kafka, source, more)
    run_project(folder, *FLOWS)
    everything += more
    assert in_lake(folder, "counts") == windows(everything)
    assert in_lake(folder, "copy") == copied(everything)

    # to a date: from there on everything comes again, beside what is there
    date = "2026-01-01T00:02:00Z"
    shown = headrace("offsets", "reset", "-p", folder, "copy", "--to-datetime", date, "--dry-run")
    since = [row for row in everything if row["at"] >= (START + 120) * 1000]
    assert (shown["records_again"], shown["done"]) == (len(since), False)
    assert headrace("offsets", "reset", "-p", folder, "copy", "--to-datetime", date, code=Exit.USAGE)
    headrace("offsets", "reset", "-p", folder, "copy", "--to-datetime", date, "--execute")
    run_project(folder, "copy")
    assert in_lake(folder, "copy") == copied(everything) + copied(since)

    # and cleanly from the beginning
    headrace("rewind", "-p", folder, "copy", "--to", "earliest", "--replace", "--yes")
    assert in_lake(folder, "copy") == in_files(folder, "copy") == Counter()
    run_project(folder, "copy")
    assert in_lake(folder, "copy") == in_files(folder, "copy") == copied(everything)
