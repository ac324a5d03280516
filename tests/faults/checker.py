"""Reads the sinks and the generator's log, nothing else, and says what is wrong. A process of its own.

    python checker.py SCENE.json

It shares no code with the engine. SCENE.json names brokers, topics and folders (see scene.py). The verdict goes to
stdout as JSON; exit code 1 when an invariant is violated:

I1 no acknowledged event is missing · I2 none is there twice · I3 every closed window equals an offline recompute, and
none is there that is not closed · I4 the events of a key are in their order (Kafka) · I7 in = out + dead letters + late
· I8 checkpoints can be read, no batch is in flight, nothing is left half done where a reader would see it.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

WINDOW_MS = 10_000
SHOWN = 5

Row = Mapping[str, Any]
WindowKey = tuple[int, str]


@dataclass(frozen=True)
class Violation:
    """One broken promise: which, where, how often, and the first cases of it."""

    invariant: str
    where: str
    what: str
    count: int
    cases: list[Any]


@dataclass(frozen=True)
class Log:
    """What the broker has acknowledged."""

    good: dict[str, tuple[str, int, int, int]]
    """id -> (key, n, amount, ts)"""
    bad: set[str]
    complete: bool
    """Whether all that was sent was acknowledged, so that nothing else may come out."""

    @staticmethod
    def read(path: Path) -> Log:
        good: dict[str, tuple[str, int, int, int]] = {}
        bad: set[str] = set()
        complete = False
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            if isinstance(entry, dict):
                complete = entry["sent"] == entry["acknowledged"]
                continue
            name, key, n, amount, ts, spoilt = entry
            if spoilt:
                bad.add(name)
            else:
                good[name] = (key, n, amount, ts)
        return Log(good, bad, complete)

    def closed_windows(self, watermark_ms: int) -> dict[WindowKey, tuple[int, int]]:
        """(start, key) -> (events, sum of amounts), for windows that end by the newest event less the watermark."""
        sums: dict[WindowKey, list[int]] = defaultdict(lambda: [0, 0])
        for key, _n, amount, ts in self.good.values():
            total = sums[(ts // WINDOW_MS * WINDOW_MS, key)]
            total[0] += 1
            total[1] += amount
        until = max((ts for _key, _n, _amount, ts in self.good.values()), default=0) - watermark_ms
        return {place: (n, total) for place, (n, total) in sums.items() if place[0] + WINDOW_MS <= until}


@dataclass
class Findings:
    """What was found so far."""

    violations: list[Violation] = field(default_factory=list)
    figures: dict[str, int] = field(default_factory=dict)

    def expect_none(self, invariant: str, where: str, what: str, cases: Iterable[Any]) -> None:
        found = list(cases)
        if found:
            self.violations.append(Violation(invariant, where, what, len(found), found[:SHOWN]))

    def verdict(self) -> dict[str, Any]:
        return {
            "ok": not self.violations,
            "violations": [asdict(one) for one in self.violations],
            "figures": self.figures,
        }


def check_events(found: Findings, where: str, rows: Sequence[Row], log: Log) -> None:
    """The stateless flow: every event once, unchanged."""
    counts = Counter(row["id"] for row in rows)
    found.figures[f"{where} rows"] = len(rows)
    found.expect_none("I1", where, "acknowledged, not there", sorted(log.good.keys() - counts.keys()))
    found.expect_none("I2", where, "there more than once", sorted(name for name, n in counts.items() if n > 1))
    if log.complete:
        found.expect_none("I7", where, "there, never sent", sorted(counts.keys() - log.good.keys()))
    changed = [row["id"] for row in rows if row["id"] in log.good and _content(row) != log.good[row["id"]]]
    found.expect_none("I1", where, "there, with other content", changed)


def _content(row: Row) -> tuple[str, int, int, int]:
    return row["k"], row["n"], row["amount"], milliseconds(row["ts"])


def check_order(found: Findings, where: str, records: Sequence[tuple[int, int, Row]]) -> None:
    """Records of a topic as (partition, offset, row): a key stays in one partition, in the order it was sent in."""
    partitions: dict[str, set[int]] = defaultdict(set)
    last: dict[str, int] = {}
    swapped = []
    for partition, offset, row in sorted(records, key=lambda record: record[:2]):
        partitions[row["k"]].add(partition)
        if row["n"] < last.get(row["k"], -1):
            swapped.append([partition, offset, row["id"]])
        last[row["k"]] = max(row["n"], last.get(row["k"], -1))
    found.expect_none("I4", where, "before an earlier one of its key", swapped)
    found.expect_none("I4", where, "key in several partitions", [k for k, p in partitions.items() if len(p) > 1])


def check_windows(found: Findings, where: str, rows: Sequence[Row], log: Log, watermark_ms: int) -> None:
    """The windowed flow: every closed window once, and equal to the recompute."""
    expected = log.closed_windows(watermark_ms)
    found.figures[f"{where} rows"] = len(rows)
    places = [(milliseconds(row["since"]), row["k"]) for row in rows]
    counts = Counter(places)
    found.expect_none("I1", where, "window closed, not there", sorted(expected.keys() - counts.keys()))
    found.expect_none("I2", where, "window more than once", sorted(place for place, n in counts.items() if n > 1))
    found.expect_none("I3", where, "window there that is not closed", sorted(counts.keys() - expected.keys()))
    wrong = [
        [*place, [row["n"], row["total"]], list(expected[place])]
        for place, row in zip(places, rows, strict=True)
        if place in expected and (row["n"], row["total"]) != expected[place]
    ]
    found.expect_none("I3", where, "window with other sums: found, expected", wrong)


def check_letters(found: Findings, flow: str, letters: Sequence[Row], late: int, log: Log) -> None:
    """Dead letters: every malformed record, no other; nothing is late."""
    values = {letter["id"]: bytes(letter["value"] or b"") for letter in letters}
    names = Counter(_name(value) for value in values.values())
    where = f"{flow} dead letters"
    found.figures[where] = len(values)
    found.expect_none("I7", where, "malformed, not kept", sorted(log.bad - names.keys()))
    found.expect_none("I7", where, "kept, not malformed", sorted(names.keys() - log.bad))
    found.expect_none("I7", where, "kept under several ids", sorted(name for name, n in names.items() if n > 1))
    found.expect_none("I7", f"{flow} late rows", "late, though disorder is less than the watermark", range(late))


def _name(value: bytes) -> str:
    match = re.search(rb'"id": "(\w+)"', value)
    return match[1].decode() if match else repr(value)


def check_checkpoint(found: Findings, flow: str, folder: Path) -> None:
    """Spark's own files, read as text: one record per batch, the newest one committed."""
    where = f"{flow} checkpoint"
    unreadable = []
    for file in _numbered(folder / "offsets"):
        lines = file.read_text().splitlines()
        try:
            fine = lines[0] == "v1" and all(json.loads(line) is not None for line in lines[1:] if line != "-")
        except (ValueError, IndexError):
            fine = False
        if not fine:
            unreadable.append(f"offsets/{file.name}")
    unreadable += [f"commits/{file.name}" for file in _numbered(folder / "commits") if not _is_commit(file)]
    found.expect_none("I8", where, "cannot be read", unreadable)
    begun, done = (_numbered(folder / name)[-1:] for name in ("offsets", "commits"))
    if [file.name for file in begun] != [file.name for file in done] or not done:
        found.expect_none("I8", where, "batch begun and not committed", [[str(f.name) for f in (*begun, *done)]])
    else:
        found.figures[f"{flow} batches"] = int(done[0].name) + 1
    leftovers = [file for file in folder.rglob(".*") if file.name.endswith(".tmp")]  # never read again, nor removed
    found.figures[f"{flow} leftovers of Spark in the checkpoint"] = len(leftovers)


def _numbered(folder: Path) -> list[Path]:
    files = folder.iterdir() if folder.is_dir() else ()
    return sorted((file for file in files if file.name.isdecimal()), key=lambda file: int(file.name))


def _is_commit(file: Path) -> bool:
    lines = file.read_text().splitlines()
    return len(lines) == 2 and lines[0] == "v1" and lines[1].startswith("{")


def check_folder(found: Findings, where: str, folder: Path) -> None:
    """A folder of published files: nothing unfinished in it, nothing waiting beside it."""
    hidden = [str(file) for file in folder.rglob("*") if file.name.startswith((".", "_"))]
    workshop = folder.parent / f".{folder.name}.headrace"
    staged = [str(file) for file in (workshop / "staging").rglob("*") if file.is_file()]
    drafts = [str(file) for file in (workshop / "commits").rglob("*.draft")]
    found.expect_none("I8", where, "left unfinished", [*hidden, *staged, *drafts])


def milliseconds(value: Any) -> int:
    """A time as clients of the three sinks see it."""
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
    else:
        moment = datetime.fromisoformat(str(value))
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def read_topic(brokers: str, topic: str) -> list[tuple[int, int, Row]]:
    """All committed records of a topic."""
    from confluent_kafka import Consumer, TopicPartition

    settings = {
        "bootstrap.servers": brokers,
        "group.id": "checker",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
    }
    consumer = Consumer(settings)
    partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    records: list[tuple[int, int, Row]] = []
    ended = 0
    while ended < len(partitions):
        message = consumer.poll(60)
        if message is None:
            raise SystemExit(f"no answer from {topic}")
        if message.error() is None:
            records.append((message.partition(), message.offset(), json.loads(message.value())))
        else:
            ended += 1
    consumer.close()
    return records


def read_lake(folder: Path) -> tuple[list[Row], int]:
    """The rows of a Delta table, and how many of its files no version has."""
    from deltalake import DeltaTable

    table = DeltaTable(str(folder))
    known = {Path(uri).name for uri in table.file_uris()}
    unknown = sum(1 for file in folder.rglob("*.parquet") if file.name not in known and "_delta_log" not in file.parts)
    return table.to_pyarrow_table().to_pylist(), unknown


def read_json_files(folder: Path) -> list[Row]:
    """The rows of a folder of JSON lines."""
    files = sorted(folder.glob("*.json"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def read_parquet(folder: Path) -> Iterator[Row]:
    """The rows of all Parquet files below a folder."""
    import pyarrow.parquet as pq

    for file in sorted(folder.rglob("*.parquet")):
        yield from pq.read_table(file).to_pylist()


def check_flow(found: Findings, flow: str, scene: Mapping[str, Any], log: Log) -> None:
    """All that a flow has written."""
    places = scene["flows"][flow]
    state = Path(scene["state"])
    records = read_topic(scene["brokers"], places["topic"])
    lake, unknown = read_lake(Path(places["lake"]))
    found.figures[f"{flow} lake files of no version"] = unknown
    tables = {
        "kafka": [row for _partition, _offset, row in records],
        "lake": lake,
        "files": read_json_files(Path(places["files"])),
    }
    for sink, rows in tables.items():
        if flow == "windows":
            check_windows(found, f"{flow} {sink}", rows, log, scene["watermark_ms"])
        else:
            check_events(found, f"{flow} {sink}", rows, log)
    if flow != "windows":
        check_order(found, f"{flow} kafka", records)
    check_folder(found, f"{flow} files", Path(places["files"]))
    letters = list(read_parquet(state / "dead_letters" / flow))
    check_letters(found, flow, letters, sum(1 for _ in read_parquet(state / "late" / flow)), log)
    generation = (state / "flows" / flow / "current").read_text().strip()
    check_checkpoint(found, flow, state / "flows" / flow / generation / "checkpoint")


def main() -> None:
    scene = json.loads(Path(sys.argv[1]).read_text())
    log = Log.read(Path(scene["log"]))
    found = Findings()
    found.figures |= {"acknowledged": len(log.good) + len(log.bad), "malformed": len(log.bad)}
    for flow in scene["flows"]:
        check_flow(found, flow, scene, log)
    json.dump(found.verdict(), sys.stdout, indent=1)
    raise SystemExit(0 if not found.violations else 1)


if __name__ == "__main__":
    main()
