from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from tests.sinks.changes import KEY, LIFE, frame
from tests.sinks.trials import Trial

from headrace.core.context import Batch, Context
from headrace.sinks.console import ConsoleSink


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    return Batch("counts", "g1", 7, "console", "append", Context(tmp_path, "state"))


def printed(capsys: pytest.CaptureFixture[str]) -> list[Any]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.spark
def test_a_pipe_gets_one_json_document_per_row(spark: Any, batch: Batch, capsys: pytest.CaptureFixture[str]) -> None:
    rows = spark.sql("SELECT 1 AS id, 'a' AS `driver.name`, null AS none, timestamp '2026-01-31 12:00:00' AS at")
    ConsoleSink().write_batch(rows, batch)
    row = {"id": 1, "driver.name": "a", "none": None, "at": "2026-01-31T12:00:00.000Z"}
    assert printed(capsys) == [{"flow": "counts", "batch": 7, "row": row}]


@pytest.mark.spark
def test_the_rest_of_a_large_batch_is_counted(spark: Any, batch: Batch, capsys: pytest.CaptureFixture[str]) -> None:
    ConsoleSink(limit=3).write_batch(spark.range(1000, numPartitions=4), batch)
    *rows, rest = printed(capsys)
    assert [row["row"]["id"] for row in rows] == [0, 1, 2]
    assert rest == {"flow": "counts", "batch": 7, "more": 997}
    ConsoleSink(limit=None).write_batch(spark.range(1000, numPartitions=4), batch)
    assert len(printed(capsys)) == 1000


@pytest.mark.spark
def test_an_empty_batch_prints_nothing(spark: Any, batch: Batch, capsys: pytest.CaptureFixture[str]) -> None:
    ConsoleSink().write_batch(spark.range(0), batch)
    assert capsys.readouterr().out == ""


@pytest.mark.spark
def test_a_terminal_gets_a_table(spark: Any, batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    rows = spark.sql("SELECT id, array(id) AS ids, '[red]x' AS text FROM range(30)")
    ConsoleSink().write_batch(rows, batch)
    text = terminal.getvalue()
    assert "counts · batch 7" in text
    assert "[19]" in text
    assert "[20]" not in text
    assert "[red]x" in text
    assert "… and 10 more" in text


@pytest.mark.spark
def test_all_partitions_of_a_stateful_flow_are_read(spark: Any, batch: Batch, tmp_path: Path) -> None:
    """Spark ends a query whose state is not committed in every partition; a limit alone would leave some unread."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.txt").write_text("\n".join(map(str, range(100))))
    counts = spark.readStream.text(str(tmp_path / "in")).groupBy("value").count()
    query = (
        counts.writeStream.outputMode("update")
        .foreachBatch(lambda rows, _: ConsoleSink(limit=1).write_batch(rows, batch))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert query.exception() is None


@pytest.mark.spark
def test_changes_of_a_view(spark: Any, batch: Batch, capsys: pytest.CaptureFixture[str]) -> None:
    ConsoleSink(format="json").write_changes(frame(spark, LIFE[1]), KEY, batch)
    found = {line["change"]: line for line in printed(capsys)}
    old = {"region": "eu", "id": 1, "amount": 10.5, "note": "a"}
    assert found["update"] == {
        "flow": "counts", "batch": 7, "change": "update", "row": {**old, "amount": None, "note": "b"}, "old": old
    }  # fmt: skip
    assert (found["insert"]["old"], found["delete"]["row"]["region"]) == (None, "us")
    ConsoleSink(format="table").write_changes(frame(spark, LIFE[1]), KEY, batch)
    rows = [line.replace("│", " ").split() for line in capsys.readouterr().out.splitlines() if "│" in line]
    assert sorted(rows) == [["+", "us", "2", "new"], ["-", "us", "1"], ["~", "eu", "1", "b"]]


def trial(request: pytest.FixtureRequest, folder: Path) -> Trial:
    return Trial(ConsoleSink, None)
