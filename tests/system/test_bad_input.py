"""What a user gets for each of the usual mistakes: a code, a place and a hint, before Spark is even started."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.cli.main import main

if TYPE_CHECKING:
    from headrace.testing.services import Kafka

GOOD = """project: mistakes
streams:
  orders:
    source:
      type: kafka
      brokers: BROKERS
      topic: TOPIC
    format:
      type: json
      columns: id bigint, service string, amount double
flows:
  big:
    sql: |
      SELECT id, amount
      FROM orders
      WHERE amount > 5
    sinks: [console]
"""
PROTOBUF = """    format:
      type: protobuf
      proto: schemas/a.proto
      message: rides.Bokking
"""
JSON_FORMAT = "    format:\n      type: json\n      columns: id bigint, service string, amount double\n"


def errors_of(folder: Path, text: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    (folder / "headrace.yaml").write_text(text)
    code = main(["run", str(folder), "--json"])
    document = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert code == document["error"]["exit"] != 0
    found: list[dict[str, object]] = document.get("errors") or [document["error"]]
    return found


OFFLINE = [
    ("unknown key", "topic: TOPIC", "topics: TOPIC", "unknown-key", 7, "did you mean 'topic'"),
    ("wrong type", "    sinks: [console]", "    sinks: [console]\n    partitions: many", "wrong-type", 18, "artitions"),
    ("missing file", "    sql: |", "    sql_file: sql/no.sql\n    description: |", "missing-file", 13, "path"),
    ("unknown column", "SELECT id, amount", "SELECT id, ammount", "unknown-column", 14, "did you mean 'amount'"),
    ("unknown input", "FROM orders", "FROM order", "unknown-input", 15, "did you mean 'orders'"),
    ("SQL syntax", "WHERE amount > 5", "WHERE (amount > 5", "sql-syntax", 16, "brackets"),
    ("message not in the descriptor", JSON_FORMAT, PROTOBUF, "unknown-message", 8, "did you mean 'rides.Booking'"),
    ("unknown kind", "type: kafka", "type: kafak", "unknown-kind", 4, "did you mean 'kafka'"),
    ("no default for a variable", "brokers: BROKERS", "brokers: ${NOWHERE}", "unknown-variable", 6, "NOWHERE"),
]


@pytest.mark.parametrize(
    ("before", "after", "code", "line", "hint"), [m[1:] for m in OFFLINE], ids=[m[0] for m in OFFLINE]
)
def test_mistakes_in_the_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], before: str, after: str, code: str, line: int, hint: str
) -> None:
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "a.proto").write_text('syntax = "proto3"; package rides; message Booking { int64 id = 1; }')
    assert before in GOOD
    (found, *_rest) = errors_of(tmp_path, GOOD.replace(before, after).replace("BROKERS", "localhost:9092"), capsys)
    assert (found["code"], found["where"]["line"]) == (code, line)  # type: ignore[index]
    assert found["where"]["file"] == "headrace.yaml"  # type: ignore[index]
    assert hint in str(found["hint"])


@pytest.mark.service
def test_mistakes_about_the_broker(
    tmp_path: Path, kafka: Kafka, topic: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    name = topic()
    missing = errors_of(tmp_path, GOOD.replace("BROKERS", kafka.address).replace("TOPIC", name[:-1]), capsys)
    assert [error["code"] for error in missing] == ["topic-missing"]
    assert name in str(missing[0]["hint"])

    unreachable = errors_of(tmp_path, GOOD.replace("BROKERS", "127.0.0.1:1").replace("TOPIC", name), capsys)
    assert [error["code"] for error in unreachable] == ["broker-unreachable"]
    assert "127.0.0.1:1" in str(unreachable[0]["message"])

    security = "security: {sasl: SCRAM-SHA-256, username: alice, password: wrong-guess}"
    text = GOOD.replace("brokers: BROKERS", f"brokers: {kafka.sasl_address}\n      {security}").replace("TOPIC", name)
    refused = errors_of(tmp_path, text, capsys)
    assert [error["code"] for error in refused] == ["kafka-authentication"]
    assert "wrong-guess" not in json.dumps(refused)
    for error in (*missing, *unreachable, *refused):
        assert error["where"]["line"] == 4  # type: ignore[index]
        assert error["hint"]
