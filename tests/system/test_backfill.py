"""History from files or a lake table, then Kafka: every row once, whatever happens on the way."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from tests.system.conftest import RunProject

from headrace.core.errors import ProjectError
from headrace.core.positions import Earliest, Latest, SplitScope
from headrace.core.schema import TIMESTAMP
from headrace.engine.inputs.backfill import histories, progress
from headrace.engine.letters.dead_letters import read_dead_letters
from headrace.engine.letters.late_rows import read_late_rows
from headrace.engine.positions.rewind import Rewinder
from headrace.engine.state import milestones
from headrace.engine.state.state import StateDir
from headrace.plan.planner import make_plan
from headrace.project.loader import Project, load

if TYPE_CHECKING:
    from headrace.testing.services import Kafka

pytestmark = [pytest.mark.spark, pytest.mark.service]

BEGIN = datetime(2026, 1, 1, 22, tzinfo=UTC)
COUNT = 1200
# the events are old, and the broker must not clear them away during the test
KEEP = {"retention.ms": "-1"}
Event = dict[str, Any]


def events(chance: random.Random) -> list[Event]:
    """Events of four hours, each up to eight seconds out of order."""
    made = []
    for number in range(COUNT):
        moment = BEGIN + timedelta(seconds=12 * number + chance.uniform(-4, 4))
        made.append({"id": number, "at": moment.replace(microsecond=0), "amount": chance.randrange(100)})
    return made


def produce(kafka: Kafka, topic: str, given: list[Event], partitions: int) -> list[tuple[int, int]]:
    """Write events with their own times; the partition and offset that each got."""
    # a request that is sent again must not be overtaken: the events are in the order of their times
    producer = Producer({"bootstrap.servers": kafka.address, "enable.idempotence": True})
    places: dict[int, tuple[int, int]] = {}
    for index, event in enumerate(given):
        value = json.dumps({**event, "at": event["at"].isoformat()}).encode()

        def delivered(_error: Any, message: Any, index: int = index) -> None:
            places[index] = (message.partition(), message.offset())

        time = round(event["at"].timestamp() * 1000)
        producer.produce(topic, value, partition=event["id"] % partitions, timestamp=time, on_delivery=delivered)
        producer.poll(0)
    assert producer.flush(60) == 0
    return [places[index] for index in range(len(given))]


def write_history(folder: Path, given: list[Event], chance: random.Random, **more: Any) -> None:
    """Events in files of hours, in folders like dt=2026-01-01/hr=22, written in any order."""
    by_hour: dict[datetime, list[Event]] = {}
    for event in given:
        by_hour.setdefault(event["at"].replace(minute=0, second=0), []).append(event)
    hours = list(by_hour)
    chance.shuffle(hours)
    for age, hour in enumerate(hours):
        rows = by_hour[hour]
        chance.shuffle(rows)
        columns = {"id": [row["id"] for row in rows], "amount": pa.array([row["amount"] for row in rows], pa.int32())}
        columns |= {name: pa.array([row[name] for row in rows], kind) for name, kind in more.items()}
        file = folder / f"dt={hour:%Y-%m-%d}" / f"hr={hour:%H}" / "part.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(
            pa.table({**columns, "at": pa.array([row["at"] for row in rows], TIMESTAMP)}), file, row_group_size=100
        )
        os.utime(file, (1000 - age, 1000 - age))


PROJECT = """
project: shop
streams:
  orders:
    source: {{type: kafka, brokers: "{brokers}", topic: {topic}}}
    format: {{type: json, columns: 'id bigint, at timestamp, amount int'}}
    event_time: {{column: at, watermark: 10s}}
    backfill: {backfill}
flows:
{flows}
state: state
"""
ROWS = "{sql: 'SELECT id, at, amount, _offset FROM orders', sinks: [{type: lake, path: lake/rows}], max_records: 150}"
WINDOWS = (
    "{sql: 'SELECT window.start AS start, count(*) AS n, sum(amount) AS total FROM orders "
    'GROUP BY window(at, "1 minute")\', sinks: [{type: lake, path: lake/windows}], max_records: 150}'
)


def project(folder: Path, kafka: Kafka, topic: str, backfill: str, **flows: str) -> Project:
    listed = "\n".join(f"  {name}: {text}" for name, text in flows.items())
    text = PROJECT.format(brokers=kafka.address, topic=topic, backfill=backfill, flows=listed)
    (folder / "headrace.yaml").write_text(text)
    return load(folder)


def table(path: Path) -> list[dict[str, Any]]:
    from deltalake import DeltaTable

    found: list[dict[str, Any]] = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    return found


def run_with_crashes(
    run_project: RunProject, monkeypatch: pytest.MonkeyPatch, folder: Path, crashes: set[tuple[str, int]]
) -> int:
    """Run until caught up; the query dies once at each of these milestones. How often it died."""
    left, died = set(crashes), 0

    def reach(point: str, _flow: str, batch_id: int) -> None:
        if (point, batch_id) in left:
            left.discard((point, batch_id))
            raise RuntimeError(f"injected at {point} of {batch_id}")

    monkeypatch.setattr(milestones, "reach", reach)
    while True:
        try:
            run_project(folder)
            return died
        except ProjectError as error:
            if "injected" not in str(error):
                raise
            died += 1


def expected_windows(given: list[Event]) -> dict[datetime, tuple[int, int]]:
    """The windows that are closed when everything was read, computed from the events alone."""
    counts: Counter[datetime] = Counter()
    totals: Counter[datetime] = Counter()
    for event in given:
        start = event["at"].replace(second=0)
        counts[start] += 1
        totals[start] += event["amount"]
    closed = max(event["at"] for event in given) - timedelta(seconds=10)
    return {start: (n, totals[start]) for start, n in counts.items() if start + timedelta(minutes=1) <= closed}


@pytest.mark.parametrize("seed", [1, 2] if os.environ.get("HEADRACE_FAULTS") == "full" else [2])
def test_windows_over_a_seam_in_time(
    tmp_path: Path,
    kafka: Kafka,
    topic: Callable[..., str],
    run_project: RunProject,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    chance = random.Random(seed)
    made = events(chance)
    seam = made[chance.randrange(COUNT // 3, 2 * COUNT // 3)]["at"]
    name = topic(partitions=2, **KEEP)
    # both sides reach over the seam: only its rule tells whose a row is
    produce(kafka, name, [one for one in made if one["at"] >= seam - timedelta(minutes=20)], 2)
    write_history(tmp_path / "history", [one for one in made if one["at"] < seam + timedelta(minutes=30)], chance)
    # a middle of the history, around the seam, and in Kafka
    last = (seam - BEGIN) // timedelta(hours=1)
    crashes = {("after_sinks", 0), ("before_batch", last), ("after_sinks", last + chance.randrange(2, 4))}
    backfill = f"{{files: history, until: '{seam.isoformat()}', margin: 30min}}"
    loaded = project(tmp_path, kafka, name, backfill, windows=WINDOWS)
    died = run_with_crashes(run_project, monkeypatch, tmp_path, crashes)
    assert died >= 2
    found = {row["start"]: (row["n"], row["total"]) for row in table(tmp_path / "lake/windows")}
    assert len(table(tmp_path / "lake/windows")) == len(found), "no window came twice"
    assert found == expected_windows(made)
    state = StateDir.of(loaded.context)
    assert read_late_rows(state.late).num_rows == 0
    (history,) = histories(state.current("windows")).values()
    assert history.parts >= 2
    assert history.done
    assert progress(state.current("windows")) is None


def test_rows_go_on_after_the_highest_offset(
    tmp_path: Path,
    kafka: Kafka,
    topic: Callable[..., str],
    run_project: RunProject,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The history is a lake table that another flow wrote from the same topic, and that grows on."""
    chance = random.Random(3)
    made = events(chance)
    name = topic(partitions=3, **KEEP)
    places = produce(kafka, name, made, 3)
    cut = 700
    # partitions do not end at the same event
    kept = [
        {**event, "_partition": p, "_offset": o}
        for event, (p, o) in zip(made, places, strict=True)
        if event["id"] < cut + 40 * p
    ]
    from deltalake import write_deltalake

    def as_table(rows: list[Event]) -> pa.Table:
        schema = pa.schema([("id", pa.int64()), ("at", TIMESTAMP), ("_partition", pa.int32()), ("_offset", pa.int64())])
        return pa.Table.from_pylist(rows, schema)

    for begin in range(0, len(kept), 150):
        write_deltalake(str(tmp_path / "old"), as_table(kept[begin : begin + 150]), mode="append")
    loaded = project(tmp_path, kafka, name, "{lake: old}", rows=ROWS)
    crashes = {("after_sinks", 1), ("before_batch", 2), ("after_sinks", 3)}
    assert run_with_crashes(run_project, monkeypatch, tmp_path, crashes) == 3
    write_deltalake(str(tmp_path / "old"), as_table([{**made[-1], "_partition": 0, "_offset": 399}]), mode="append")
    more = [{"id": COUNT + i, "at": made[-1]["at"], "amount": 1} for i in range(10)]
    produce(kafka, name, more, 3)
    run_project(tmp_path)
    rows = table(tmp_path / "lake/rows")
    assert sorted(row["id"] for row in rows) == list(range(COUNT + 10)), "each row once"
    by_id = {row["id"]: row for row in rows}
    assert all(by_id[event["id"]]["_offset"] == place[1] for event, place in zip(made, places, strict=True))
    assert by_id[0]["amount"] is None, "the history has no such column"

    # where it may go from here
    state = StateDir.of(loaded.context)
    plan = make_plan(loaded)
    rewinder = Rewinder(plan.flow("rows"), plan, state, loaded.context)
    assert rewinder.to_position(Earliest(), SplitScope()).start == {}, "the history again"
    made_anew = rewinder.execute(rewinder.to_position(Latest(), SplitScope()))
    run_project(tmp_path)
    assert histories(made_anew)["orders"].skipped
    assert len(table(tmp_path / "lake/rows")) == COUNT + 10


def test_a_gap_between_the_history_and_kafka_is_refused(
    tmp_path: Path, kafka: Kafka, topic: Callable[..., str], run_project: RunProject
) -> None:
    name = topic(**KEEP)
    made = events(random.Random(4))[:20]
    produce(kafka, name, made, 1)
    rows = [{**event, "_partition": 0, "_offset": 25} for event in made]
    write_history(tmp_path / "history", rows, random.Random(4), _partition=pa.int32(), _offset=pa.int64())
    project(tmp_path, kafka, name, "{files: history}", rows=ROWS)
    with pytest.raises(ProjectError) as caught:
        run_project(tmp_path)
    assert caught.value.code == "backfill-gap"


def test_history_without_a_time_is_a_dead_letter(
    tmp_path: Path, kafka: Kafka, topic: Callable[..., str], run_project: RunProject
) -> None:
    name = topic(**KEEP)
    made = events(random.Random(5))[:30]
    produce(kafka, name, made[20:], 1)
    (tmp_path / "history").mkdir()
    times = pa.array([*(event["at"] for event in made[:20]), None], TIMESTAMP)
    pq.write_table(pa.table({"id": [*range(20), 99], "at": times}), tmp_path / "history" / "a.parquet")
    until = made[20]["at"] - timedelta(seconds=4)
    until = max(until, made[19]["at"] + timedelta(seconds=1))
    loaded = project(tmp_path, kafka, name, f"{{files: history/a.parquet, until: '{until.isoformat()}'}}", rows=ROWS)
    run_project(tmp_path)
    assert sorted(row["id"] for row in table(tmp_path / "lake/rows")) == list(range(30))
    (letter,) = read_dead_letters(StateDir.of(loaded.context).dead_letters).to_pylist()
    assert letter["reason"] == "no-event-time"
    assert json.loads(letter["position"])["history_row"] == 20
