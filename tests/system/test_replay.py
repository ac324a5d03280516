"""Records that could not be read come through once, after a fix, whatever happens on the way."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from tests.faults.planting import planted_environment
from tests.system.conftest import RunProject, consume

from headrace.core.errors import ProjectError
from headrace.core.rows import drain
from headrace.engine.letters.dead_letter_index import DeadLetterFilter, DeadLetterIndex
from headrace.engine.replay.replay import DeadLetterReplayer, ReplayOutcome
from headrace.engine.replay.replay_folders import UnfinishedReplays
from headrace.engine.replay.replay_plan import ReplayPlan, ReplayPlanner
from headrace.engine.state.state import StateDir
from headrace.project.loader import load
from headrace.sinks.files import FilesSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.testing.services import Kafka

pytestmark = pytest.mark.spark

RECORDS = 2000
FRACTIONS = range(50, RECORDS, 100)  # 1 %: amounts that a column of whole numbers cannot hold
BROKEN = (7, 1007)


def record(number: int) -> bytes:
    if number in BROKEN:
        return b"\xff not a record"
    return json.dumps({"id": number, "amount": number + (0.5 if number in FRACTIONS else 0)}).encode()


class Letters:
    """The dead letters of a project, replayed in this process."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.project = load(folder)
        self.state = StateDir.of(self.project.context)
        self.book = DeadLetterIndex(self.state.dead_letters)
        self.spark = spark

    def open(self) -> int:
        return DeadLetterFilter().of(self.book.read().index).num_rows

    def plan(self) -> ReplayPlan:
        shelf = self.book.read()
        begun = UnfinishedReplays(self.state.replays).flows()
        return ReplayPlanner(self.project, self.state, shelf).plan(DeadLetterFilter().of(shelf.index), begun)

    def replay(self) -> list[ReplayOutcome]:
        with self.book.history.lock(), self.book.locked():
            replayer = DeadLetterReplayer(self.project, self.state, self.spark)
            return [replayer.run(one, self.book.read()) for one in self.plan().replays]


def lake(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = DeltaTable(str(folder / "lake")).to_pyarrow_table().to_pylist()
    return rows


@pytest.mark.service
def test_letters_come_through_once_in_every_sink_though_a_replay_breaks_off(
    tmp_path: Path,
    kafka: Kafka,
    topic: Callable[..., str],
    run_project: RunProject,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, target = topic(partitions=3), topic(partitions=2)
    produce_with_headers(kafka, source)
    text = f"""
project: shop
streams:
  orders:
    source: {{type: kafka, brokers: {kafka.address}, topic: {source}}}
    format: {{type: json, columns: "id bigint, amount TYPE"}}
flows:
  copied:
    sql: |
      SELECT id, CAST(amount AS double) AS amount, CAST(_key AS string) AS key, _offset AS place, _timestamp AS at,
        CAST(_headers[0].value AS string) AS origin
      FROM orders
    sinks:
      - {{type: lake, path: lake}}
      - {{type: files, path: out}}
      - {{type: kafka, brokers: {kafka.address}, topic: {target}, key: key, delivery: exactly_once}}
"""
    (tmp_path / "headrace.yaml").write_text(text.replace("TYPE", "bigint"))
    run_project(tmp_path)
    before = Letters(tmp_path, spark)
    assert before.open() == len(FRACTIONS) + len(BROKEN)
    assert [(one.replayed, one.still_bad, one.rows) for one in before.replay()] == [(0, 22, 0)], "nothing is mended yet"

    (tmp_path / "headrace.yaml").write_text(text.replace("TYPE", "double"))
    letters = Letters(tmp_path, spark)

    def crash(self: FilesSink, rows: Any, batch: Any) -> None:
        raise ProjectError("planted", "between two sinks")

    with monkeypatch.context() as planted:
        planted.setattr(FilesSink, "write_batch", crash)
        with pytest.raises(ProjectError, match="between two sinks"):
            letters.replay()
    assert len(lake(tmp_path)) == RECORDS - len(BROKEN), "the first sink has them"
    assert letters.open() == 22
    assert [one.chosen for one in letters.plan().replays] == [None], "the replay is to be finished, not begun anew"

    assert [(one.replayed, one.still_bad, one.rows) for one in letters.replay()] == [(20, 2, 20)]
    assert [(one.replayed, one.still_bad, one.rows) for one in letters.replay()] == [(0, 2, 0)]
    assert letters.open() == 2

    good = {number for number in range(RECORDS) if number not in BROKEN}
    for rows in (
        lake(tmp_path),
        ds.dataset(tmp_path / "out").to_table().to_pylist(),
        [json.loads(message.value()) for message in consume(kafka, target)],
    ):
        assert Counter(row["id"] for row in rows) == dict.fromkeys(good, 1)
        assert all(row["amount"] == row["id"] + (0.5 if row["id"] in FRACTIONS else 0) for row in rows)
        assert all(row["key"] == f"k{row['id'] % 7}" and row["origin"] == f"shop {row['id']}" for row in rows)
    sent = {message.value(): (message.offset(), message.timestamp()[1]) for message in consume(kafka, source)}
    for row in lake(tmp_path):
        assert (row["place"], round(row["at"].timestamp() * 1000)) == sent[record(row["id"])]
    assert not list((tmp_path / ".headrace" / "replays").iterdir())
    assert [path.name for path in (tmp_path / ".headrace" / "flows" / "copied").glob("replay-*")] == []


def produce_with_headers(kafka: Kafka, topic: str) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": kafka.address, "linger.ms": 20})
    for number in range(RECORDS):
        headers: dict[str, str | bytes | None] = {"origin": f"shop {number}"}
        producer.produce(topic, record(number), key=f"k{number % 7}".encode(), headers=headers)
        producer.poll(0)
    assert producer.flush(60) == 0


FILES = """
project: shop
streams:
  orders:
    source: {type: files, path: orders}
    format: {type: json, columns: "id bigint, amount TYPE, at timestamp"}
    event_time: at
  more:
    source: {type: files, path: more}
    format: {type: json, columns: "id bigint, amount double"}
flows:
  both:
    sql: SELECT id, CAST(amount AS double) AS amount FROM orders UNION ALL SELECT id, amount FROM more
    sinks: [{type: files, path: first}, {type: files, path: second}]
  counts:
    sql: SELECT window.start AS since, count(amount) AS n FROM orders GROUP BY window(at, '1 hour')
    output: update
    sinks: [noop]
"""


def published(folder: Path) -> list[int]:
    found: list[int] = ds.dataset(folder).to_table()["id"].to_pylist()
    return found


def timed(number: int) -> bytes:
    given = record(number)
    return given if number in BROKEN else given[:-1] + b', "at": "2026-01-01T00:00:00Z"}'


def test_a_killed_replay_is_finished_by_the_next_while_an_engine_runs(tmp_path: Path, run_project: RunProject) -> None:
    for stream in ("orders", "more"):
        (tmp_path / stream).mkdir()
    (tmp_path / "orders" / "a.json").write_bytes(b"\n".join(timed(number) for number in range(RECORDS)))
    (tmp_path / "more" / "a.json").write_text('{"id": -1, "amount": 1}\n{"id": "no number"}\n')
    (tmp_path / "headrace.yaml").write_text(FILES.replace("TYPE", "bigint"))
    run_project(tmp_path)
    (tmp_path / "headrace.yaml").write_text(FILES.replace("TYPE", "double"))

    def replay(crash: str | None = None) -> tuple[int, str, str]:
        command = [sys.executable, "-c", "import sys; from headrace.cli.main import main; sys.exit(main())"]
        arguments = ["dead-letters", "replay", "--all", "--yes", "--json", "-p", str(tmp_path)]
        done = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, env=planted_environment(crash), timeout=900,
            start_new_session=True, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    good = [-1, *(number for number in range(RECORDS) if number not in BROKEN)]
    with StateDir(tmp_path / ".headrace").lock():
        code, _, _ = replay(crash="between_sinks:0")
        assert code == -signal.SIGKILL
        assert Counter(published(tmp_path / "first")) == Counter(good), "the first sink has them"
        assert Counter(published(tmp_path / "second")) == Counter(good) - Counter(FRACTIONS)
        code, out, err = replay()
    assert code == 1, err  # some are still bad, and a flow with state is refused
    document = json.loads(out)
    (done,) = document["replays"]
    assert (done["flow"], done["begun_before"], done["letters"]) == ("both", True, 23)
    assert (done["replayed"], done["still_bad"], done["rows"]) == (20, 3, 20)
    (refused,) = document["refused"]
    assert (refused["flow"], refused["code"], refused["letters"]) == ("counts", "replay-stateful", 22)
    assert "headrace rewind counts --to earliest" in refused["hint"]

    for sink in ("first", "second"):
        assert Counter(published(tmp_path / sink)) == Counter(good)
    book = DeadLetterIndex(tmp_path / ".headrace" / "dead_letters")
    letter = DeadLetterFilter(flow="both", stream="more").of(book.read().index)["id"][0].as_py()
    events = book.history.of("both", letter)
    assert [event["what"] for event in events] == ["replay-begun", "still-bad"]
    assert events[-1]["reason"]
    assert events[-1]["replay"] == done["id"]


AHEAD = """
project: ahead
streams:
  orders:
    source: {type: files, path: orders}
    format: {type: json, columns: "id bigint, at timestamp"}
    event_time: {column: at, max_future: FUTURE}
flows:
  copied:
    sql: SELECT id, at FROM orders
    sinks: [{type: files, path: out}]
"""


def test_a_time_too_far_ahead_is_bad_until_it_is_allowed(
    tmp_path: Path, run_project: RunProject, spark: SparkSession
) -> None:
    ahead = (datetime.now(UTC) + timedelta(hours=5)).isoformat()
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "a.json").write_text(
        f'{{"id": 1, "at": "2026-01-01T00:00:00Z"}}\n{{"id": 2, "at": "{ahead}"}}\n'
    )
    (tmp_path / "headrace.yaml").write_text(AHEAD.replace("FUTURE", "1h"))
    run_project(tmp_path)
    assert [(one.replayed, one.still_bad) for one in Letters(tmp_path, spark).replay()] == [(0, 1)]
    (tmp_path / "headrace.yaml").write_text(AHEAD.replace("FUTURE", "1d"))
    assert [(one.replayed, one.still_bad) for one in Letters(tmp_path, spark).replay()] == [(1, 0)]
    assert sorted(published(tmp_path / "out")) == [1, 2]
    events = DeadLetterIndex(tmp_path / ".headrace" / "dead_letters").history
    assert events.read()["what"].to_pylist() == ["replay-begun", "still-bad", "replay-begun", "replayed"]


def test_a_batch_that_runs_again_after_a_fix_leaves_no_letter_behind(
    tmp_path: Path, run_project: RunProject, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = AHEAD.replace("FUTURE", "1h")
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "a.json").write_text(
        '{"id": 1, "at": "2026-01-01T00:00:00Z"}\n{"id": 2.5, "at": "2026-01-01T00:00:00Z"}\n'
    )
    (tmp_path / "headrace.yaml").write_text(text)

    def crash(self: FilesSink, rows: Any, batch: Any) -> None:
        drain(rows)
        raise ProjectError("planted", "before the batch is done")

    with monkeypatch.context() as planted:
        planted.setattr(FilesSink, "write_batch", crash)
        with pytest.raises(ProjectError):
            run_project(tmp_path)
    letters = Letters(tmp_path, spark)
    assert letters.open() == 1
    assert [one.why.code for one in letters.plan().refused] == ["replay-in-flight"]
    (tmp_path / "headrace.yaml").write_text(text.replace("id bigint", "id double"))
    run_project(tmp_path)
    assert letters.open() == 0
    assert sorted(published(tmp_path / "out")) == [1, 2.5]
