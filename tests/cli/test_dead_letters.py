"""`headrace dead-letters` and `headrace late` on letters that are there: no Spark, no service."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.engine.letters.dead_letter_index import DeadLetterIndex
from headrace.engine.letters.dead_letters import SCHEMA, DeadLetterWriter
from headrace.engine.letters.late_rows import SCHEMA as LATE
from headrace.engine.replay.replay_folders import FlowReplay, UnfinishedReplays
from headrace.engine.replay.replay_plan import ReplayPlanner
from headrace.engine.state.state import StateDir
from headrace.project.loader import load

Run = Callable[..., Any]

SHOP = """\
project: shop
streams:
  orders:
    source: {type: kafka, brokers: ["127.0.0.1:9"], topic: orders}
    format: {type: json, columns: "id bigint, amount double, at timestamp"}
    event_time: at
  rows:
    source: {type: generate, fields: {id: {sequence: 0}}, count: 5}
flows:
  big:
    sql: SELECT id, amount, _timestamp FROM orders WHERE amount > 10 UNION ALL SELECT id, 1.0, now() FROM rows
    sinks: [console]
  counts:
    sql: SELECT window.start AS since, count(*) AS n FROM orders GROUP BY window(at, '1 hour')
    sinks: [console]
"""
NOW = datetime.now(UTC)


def put(folder: Path, flow: str, stream: str, letters: list[dict[str, Any]]) -> None:
    place = folder / ".headrace" / "dead_letters" / flow / stream
    place.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(letters, schema=SCHEMA), place / f"{letters[0]['id']}.parquet")


def letter(number: int, flow: str, stream: str = "orders", **more: Any) -> dict[str, Any]:
    made = {
        "id": f"{number:x}" * 24,
        "flow": flow,
        "stream": stream,
        "generation": "g1-a",
        "reason": "malformed",
        "detail": "line 1\nline 2",
        "position": json.dumps({"topic": "orders", "partition": number % 2, "offset": 100 - number}),
        "value": b'{"id": "x"}',
        "met_at": NOW - timedelta(hours=number),
        "metadata": json.dumps({"_timestamp": "2026-01-31 12:00:00+00:00"}),
        "batch": None,
    }
    return {**made, **more}


@pytest.fixture
def shop(write_project: Callable[[str, str], Path]) -> Path:
    """Four letters of `big`, three of `counts`, one of each about the same record."""
    folder = write_project("shop", SHOP)
    big = [letter(1, "big"), letter(2, "big", reason="no-event-time"), letter(3, "big", value=b"\x00\xffab" * 5)]
    put(folder, "big", "orders", [*big, letter(4, "big", value=None)])
    put(folder, "counts", "orders", [letter(1, "counts"), letter(5, "counts"), letter(6, "counts")])
    return folder


def test_count(headrace: Run, shop: Path) -> None:
    ran = headrace("dead-letters", "count", shop)
    assert ran.code == 0
    assert [line.split() for line in ran.out.splitlines()] == [
        ["6", "malformed"],
        ["1", "no-event-time"],
        ["7", "in", "all"],
    ]
    document = headrace("dead-letters", "count", shop, "big", "--by", "stream", "--json").data
    assert (document["by"], document["total"]) == ("stream", 4)
    assert [(item["stream"], item["count"]) for item in document["items"]] == [("orders", 4)]
    assert headrace("dead-letters", "count", shop, "big", "--status", "discarded", "--json").data["items"] == []
    assert headrace("dead-letters", "count", "-p", shop, "--since", "150min", "--json").data["total"] == 3


def test_list(headrace: Run, shop: Path) -> None:
    document = headrace("dead-letters", "list", shop, "big", "--json").data
    assert (document["total"], document["next"]) == (4, None)
    assert [item["id"][0] for item in document["items"]] == ["1", "2", "3", "4"], "the newest first"
    first = document["items"][0]
    assert first["position"] == {"topic": "orders", "partition": 1, "offset": 99}
    assert (first["status"], first["reason"], first["flow"], first["stream"]) == ("open", "malformed", "big", "orders")
    assert datetime.fromisoformat(first["met_at"]).tzinfo is not None
    assert "value" not in first
    assert headrace("dead-letters", "list", shop, "--reason", "no-event-time", "--json").data["total"] == 1
    assert headrace("dead-letters", "list", shop, "--since", NOW.isoformat(), "--json").data["items"] == []
    assert headrace("dead-letters", "list", shop, "--since", NOW.isoformat()).err == "no dead letters\n"
    plain = headrace("dead-letters", "list", shop, "--limit", "2")
    assert [len(line.split("\t")) for line in plain.out.splitlines()] == [8, 8], "a letter is a line"
    assert "the newest 2 of 7" in plain.err


def test_list_on_a_terminal_is_grouped_by_reason(shop: Path) -> None:
    main, terminal = pty.openpty()
    command = [sys.executable, "-c", "import sys; from headrace.cli.main import main; sys.exit(main())"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(
        [*command, "dead-letters", "list", str(shop)], stdout=terminal, stderr=subprocess.DEVNULL, env=environment
    )
    os.close(terminal)
    shown = b""
    try:
        while chunk := os.read(main, 65536):
            shown += chunk
    except OSError:  # the other end is closed
        pass
    assert process.wait(60) == 0
    text = shown.decode()
    assert text.index("malformed") < text.index("11111111") < text.index("no-event-time") < text.index("22222222")


def test_show(headrace: Run, shop: Path) -> None:
    document = headrace("dead-letters", "show", "big/11", "-p", shop, "--json").data
    assert (document["value"], document["encoding"], document["size"]) == ('{"id": "x"}', "utf-8", 11)
    assert [event["what"] for event in document["history"]] == ["met"]
    assert document["metadata"] == {"_timestamp": "2026-01-31 12:00:00+00:00"}
    dumped = headrace("dead-letters", "show", "33", "-p", shop).out
    assert "00000000  00 ff 61 62 00 ff 61 62 00 ff 61 62 00 ff 61 62  ..ab..ab..ab..ab" in dumped
    assert "00000010  00 ff 61 62 " in dumped
    assert headrace("dead-letters", "show", "4", "-p", shop, "--json").data["value"] is None
    assert "not stored" in headrace("dead-letters", "show", "4", "-p", shop).out


def test_show_raw_is_the_record_and_nothing_else(shop: Path) -> None:
    command = [sys.executable, "-c", "import sys; from headrace.cli.main import main; sys.exit(main())"]
    ran = subprocess.run([*command, "dead-letters", "show", "3", "--raw"], capture_output=True, cwd=shop, check=True)
    assert (ran.stdout, ran.stderr) == (b"\x00\xffab" * 5, b"")


@pytest.mark.parametrize(
    ("arguments", "code", "exit_code"),
    [
        (["show", "9"], "unknown-letter", 4),
        (["show", "1"], "ambiguous-letter", 2),
        (["show", "4", "--raw", "--json"], "usage", 2),
        (["show", "4", "--raw"], "replay-no-bytes", 1),
        (["list", "nosuch"], "unknown-flow", 4),
        (["list", "--since", "yesterday"], "usage", 2),
        (["count", "--by", "colour"], "usage", 2),
        (["discard"], "usage", 2),
        (["discard", "2", "--all"], "usage", 2),
        (["discard", "--all"], "confirmation-needed", 2),
        (["replay"], "usage", 2),
        (["replay", "--reason", "malformed"], "usage", 2),
        (["replay", "2"], "confirmation-needed", 2),
        (["replay", "2", "--reason", "malformed"], "usage", 2),
        (["replay", "4"], "replay-no-bytes", 1),
        (["replay", "--flow", "counts"], "replay-stateful", 5),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_refusals(
    headrace: Run, shop: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: str, exit_code: int
) -> None:
    monkeypatch.chdir(shop)
    ran = headrace("dead-letters", *arguments)
    assert f"error[{code}]" in ran.err or ran.error["error"]["code"] == code
    assert ran.code == exit_code
    assert DeadLetterIndex(shop / ".headrace" / "dead_letters").history.read().num_rows == 0, "nothing was changed"


def test_discard(headrace: Run, shop: Path) -> None:
    def discarded(*arguments: str) -> int:
        ran = headrace("dead-letters", "discard", "-p", shop, "--json", *arguments)
        assert ran.code == 0, ran.err
        return int(ran.data["discarded"])

    def left() -> int:
        return int(headrace("dead-letters", "count", shop, "--json").data["total"])

    assert (discarded("--all", "--dry-run"), left()) == (7, 7)
    assert (discarded("2", "counts/1", "--yes"), left()) == (2, 5)
    assert (discarded("2", "--yes"), left()) == (0, 5), "it is discarded already"
    assert (discarded("--flow", "counts", "--reason", "no-event-time", "--yes"), left()) == (0, 5)
    assert (discarded("--flow", "counts", "--yes"), left()) == (2, 3)
    assert (discarded("--all", "--yes"), left()) == (3, 0)
    assert headrace("dead-letters", "count", shop, "--status", "all", "--json").data["total"] == 7, "nothing is deleted"
    history = headrace("dead-letters", "show", "2", "-p", shop, "--json").data["history"]
    assert [event["what"] for event in history] == ["met", "discarded"]


def test_a_replay_says_what_it_would_do(headrace: Run, shop: Path) -> None:
    ran = headrace("dead-letters", "replay", "-p", shop, "--all", "--dry-run", "--json")
    assert ran.code == 1, "some cannot be replayed"
    (replay,) = ran.data["replays"]
    assert (replay["flow"], replay["letters"], replay["begun_before"]) == ("big", 3, False)
    assert (replay["replayed"], replay["sinks"][0]["guarantee"]) == (None, "best_effort")
    assert [(one["flow"], one["code"], one["letters"]) for one in ran.data["refused"]] == [
        ("big", "replay-no-bytes", 1),
        ("counts", "replay-stateful", 3),
    ]
    command = """echo '{"orders": {"1": 95, "0": 94}}' > oldest.json && headrace rewind counts --to oldest.json"""
    assert command in ran.data["refused"][1]["hint"]
    spoken = headrace("dead-letters", "replay", "2", "-p", shop, "--dry-run")
    assert (spoken.code, spoken.out) == (0, "would replay 1 dead letter\n")
    assert "big: 1 dead letter → console" in spoken.err


def test_nothing_to_replay(headrace: Run, shop: Path) -> None:
    headrace("dead-letters", "discard", "-p", shop, "--all", "--yes")
    ran = headrace("dead-letters", "replay", "-p", shop, "--all", "--yes")
    assert (ran.code, ran.out) == (0, "nothing to replay\n")
    assert headrace("dead-letters", "replay", "2", "-p", shop, "--dry-run").out == "would replay 1 dead letter\n"


def test_letters_of_what_is_gone_and_without_what_is_needed(headrace: Run, shop: Path) -> None:
    put(shop, "old", "orders", [letter(7, "old")])
    put(shop, "big", "former", [letter(8, "big", "former")])
    put(shop, "big", "rows", [letter(9, "big", "rows", reason="future-event-time")])
    put(shop, "big", "orders", [letter(10, "big", metadata=None)])
    ran = headrace("dead-letters", "replay", "-p", shop, "--all", "--dry-run", "--json")
    assert sorted((one["flow"], one["code"], one["letters"]) for one in ran.data["refused"]) == [
        ("big", "replay-gone", 1),
        ("big", "replay-metadata", 1),
        ("big", "replay-no-bytes", 1),
        ("big", "replay-no-bytes", 1),
        ("counts", "replay-stateful", 3),
        ("old", "replay-gone", 1),
    ]
    assert headrace("dead-letters", "list", "old", "-p", shop, "--json").data["total"] == 1, "still to be seen"


def test_what_a_replay_has_begun_with_cannot_be_discarded(headrace: Run, shop: Path) -> None:
    project = load(shop)
    state = StateDir.of(project.context)
    book = DeadLetterIndex(state.dead_letters)
    shelf = book.read()
    (made,) = ReplayPlanner(project, state, shelf).plan(book.find(shelf, ["2"]), ()).replays
    UnfinishedReplays(state.replays).begin(made, shelf)
    ran = headrace("dead-letters", "discard", "2", "-p", shop, "--yes")
    assert (ran.code, "error[replay-unfinished]" in ran.err) == (5, True)
    assert headrace("dead-letters", "discard", "3", "-p", shop, "--yes").code == 0
    plan = ReplayPlanner(project, state, shelf).plan(book.find(shelf, ["big/1", "2"]), ())
    assert [(one.id == made.id, one.letters, one.chosen is None) for one in plan.replays] == [
        (True, 1, True),
        (False, 1, False),
    ]
    assert isinstance(plan.replays[0], FlowReplay)


def test_a_sink_for_one_writer_is_not_replayed_into_while_an_engine_runs(headrace: Run, shop: Path) -> None:
    text = SHOP.replace("sinks: [console]", "sinks: [{type: lake, path: lake, key: [id]}]", 1)
    (shop / "headrace.yaml").write_text(text)
    with StateDir(shop / ".headrace").lock():
        ran = headrace("dead-letters", "replay", "2", "-p", shop, "--yes")
    assert (ran.code, "error[replay-one-writer]" in ran.err) == (5, True)
    assert "headrace stop" in ran.err


def test_letters_of_a_batch_that_will_run_again_wait_for_it(headrace: Run, shop: Path) -> None:
    generation = StateDir(shop / ".headrace").current("big")
    for part in ("offsets", "commits"):
        (generation.checkpoint_folder / part).mkdir(parents=True)
    record = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n{}'
    for number in (0, 1):
        (generation.checkpoint_folder / "offsets" / str(number)).write_text(record)
    (generation.checkpoint_folder / "commits" / "0").write_text("v1")
    put(shop, "big", "orders", [letter(7, "big", generation=generation.id, batch=0)])
    put(shop, "big", "orders", [letter(8, "big", generation=generation.id, batch=1)])
    assert headrace("dead-letters", "replay", "7", "-p", shop, "--dry-run").code == 0
    ran = headrace("dead-letters", "replay", "8", "-p", shop, "--dry-run")
    assert (ran.code, "error[replay-in-flight]: batch 1 " in ran.err) == (5, True)
    (generation.checkpoint_folder / "commits" / "1").write_text("v1")
    assert headrace("dead-letters", "replay", "8", "-p", shop, "--dry-run").code == 0


def test_late_rows(headrace: Run, shop: Path) -> None:
    assert headrace("late", "count", shop, "--json").data == {"by": "flow", "items": [], "total": 0}
    assert headrace("late", "list", shop).err == "no late rows\n"
    assert headrace("late", "list", shop, "nope").code == 4
    place = shop / ".headrace" / "late" / "counts" / "orders"
    place.mkdir(parents=True)
    row = {"flow": "counts", "stream": "orders", "generation": "g1-a", "batch": 3, "event_time": NOW, "watermark": NOW}
    rows = [row | {"id": f"a{n}", "position": '{"offset": 1}', "row": '{"id": 1}', "met_at": NOW} for n in range(3)]
    pq.write_table(pa.Table.from_pylist(rows, schema=LATE), place / "x.parquet")
    assert headrace("late", "count", shop, "--by", "stream", "--json").data["items"][0]["count"] == 3
    document = headrace("late", "list", shop, "counts", "--limit", "1", "--json").data
    assert (document["total"], document["items"][0]["row"], document["items"][0]["batch"]) == (3, {"id": 1}, 3)
    assert len(headrace("late", "list", "-p", shop).out.splitlines()) == 3


def test_letters_as_the_engine_writes_them(headrace: Run, shop: Path) -> None:
    box = DeadLetterWriter(shop / ".headrace" / "dead_letters", "big", "orders", "g2-b")
    box.add("malformed", "x", {"topic": "orders", "partition": 0, "offset": 1}, b"y", {"_key": b"k", "_timestamp": NOW})
    box.flush()
    (item,) = headrace("dead-letters", "list", shop, "--since", "10min", "--json").data["items"]
    document = headrace("dead-letters", "show", item["id"], "-p", shop, "--json").data
    assert document["metadata"] == {"_key": "aw==", "_timestamp": str(NOW)}
