"""Generates telemetry of devices: user sessions in batches, with duplicates and invalid events. The same seed and start
give the same events.

python apps/telemetry/generator.py --batches 1000 --brokers localhost:9092 --topic dev.telemetry.ingest
python apps/telemetry/generator.py --batches 10 > apps/telemetry/in/telemetry.ingest/1.jsonl
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

Event = dict[str, Any]
Fate = Literal["log", "error", "primary", "secondary", "work_order", "failed"]
"""The outcome of an event that is sent once."""

START = 1_767_225_600_000  # 2026-01-01T00:00:00Z
DEVICES, USERS, CONTENTS = 2_000, 5_000, 500
# approximately the frequencies of a player and a portal
_WITHIN = {
    "IMPRESSION": 22, "INTERACT": 40, "ASSESS": 6, "RESPONSE": 6, "INTERRUPT": 2, "FEEDBACK": 1, "SHARE": 1, "AUDIT": 2,
    "ERROR": 1, "LOG": 6, "SEARCH": 3, "METRICS": 1, "SUMMARY": 1, "EXDATA": 1, "HEARTBEAT": 2, "CB_AUDIT": 1,
}  # fmt: skip
_SECONDARY = ("INTERACT", "IMPRESSION")
_PAGES = ("home", "library", "explore", "course-toc", "content-detail", "profile")


@dataclass(frozen=True)
class Batch:
    """One request of a device."""

    text: str
    sent: tuple[tuple[str, Fate], ...]
    """The ids of its events and the outcome of each."""


@dataclass
class Generator:
    """Generates batches."""

    seed: int = 1
    size: int = 20
    """Events per batch."""
    repeats: float = 0.02
    """The share of events that is sent twice, in the same batch or a later one."""
    faults: float = 0.01
    """The share of events that are invalid."""
    start: int = START
    _chance: random.Random = field(init=False, repr=False)
    _again: list[Event] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)  # noqa: S311  # the same events every time

    def batches(self, count: int) -> Iterator[Batch]:
        events = self._events()
        for number in range(count):
            chosen = [self._again.pop() if self._again and self._chance.random() < 0.5 else next(events)
                     for _ in range(self.size)]  # fmt: skip
            yield self._batch(number, chosen)

    def _batch(self, number: int, events: list[Event]) -> Batch:
        device = f"device-{number % DEVICES}"
        batch = {
            "id": "api.telemetry", "ver": "3.0", "ets": self.start + number * 1000,
            "params": {"msgid": f"batch-{self.seed}-{number}", "did": device, "requesterId": "", "key": ""},
            "events": events, "mid": f"request-{self.seed}-{number}", "syncts": self.start + number * 1000,
        }  # fmt: skip
        return Batch(
            json.dumps(batch, separators=(",", ":")), tuple((event["mid"], fate_of(event)) for event in events)
        )

    def _events(self) -> Iterator[Event]:
        session = 0
        while True:
            for event in self._session(session):
                if self._chance.random() < self.faults:
                    self._spoil(event)
                elif self._chance.random() < self.repeats:
                    self._again.append(event)
                yield event
            session += 1

    def _session(self, number: int) -> Iterator[Event]:
        chance = self._chance
        user, device = f"user-{chance.randrange(USERS)}", f"device-{chance.randrange(DEVICES)}"
        content = f"do_{31_000_000 + chance.randrange(CONTENTS)}"
        kinds = ["START", *chance.choices([*_WITHIN], [*_WITHIN.values()], k=chance.randrange(4, 40)), "END"]
        for index, eid in enumerate(kinds):
            ets = self.start + number * 60_000 + index * chance.randrange(500, 20_000)
            yield {
                "eid": eid, "ets": ets, "ver": "3.0", "mid": f"{eid}:{self.seed}:{number}:{index}",
                "actor": {"id": user, "type": "User"},
                "context": {
                    "channel": "0123221617357783046602", "env": chance.choice(["home", "course", "discuss", "learn"]),
                    "pdata": {"id": "dev.sunbird.portal", "ver": "4.8.0", "pid": "sunbird-portal.contentplayer"},
                    "sid": f"session-{self.seed}-{number}", "did": device,
                    "cdata": [{"id": f"{number:032x}", "type": "ContentSession"},
                              {"id": f"{index:032x}", "type": "PlaySession"}],
                    "rollup": {"l1": "0123221617357783046602", "l2": "01285019302823526477"},
                },
                "object": {"id": content, "type": "Content", "ver": "2.0",
                           "rollup": {"l1": "do_31000001", "l2": "do_31000002", "l3": "do_31000003"}},
                "tags": ["0123221617357783046602", "01285019302823526477", "portal", "online"],
                "edata": _edata(eid, content, chance),
            }  # fmt: skip

    def _spoil(self, event: Event) -> None:
        match self._chance.randrange(4):
            case 0:
                del event["actor"]
            case 1:
                event["ets"] = str(event["ets"])
            case 2:
                event["edata"] = "nothing"
            case _:
                event["eid"] = "NO_EID"
        event["spoilt"] = True


def _edata(eid: str, content: str, chance: random.Random) -> dict[str, Any]:
    page = chance.choice(_PAGES)
    item = {"id": content, "maxscore": 1, "type": "mcq", "exlength": 0, "params": [], "uri": "", "desc": "",
            "title": "What is the answer to this question?", "mmc": [], "mc": []}  # fmt: skip
    target = {"id": content, "ver": "1.0", "type": "AssessmentItem", "parent": {"id": "do_31000001", "type": "Content"}}
    agent = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0.0.0 Safari/537.36"
    seconds = chance.randrange(1, 600)
    shared = [{"id": content, "type": "Content", "ver": "2", "params": [{"transfers": 0, "size": 21084308}]},
              {"id": "do_31000001", "type": "Course", "ver": "1"}]  # fmt: skip
    work_order = {"id": f"wo-{seconds}", "type": "WorkOrder", "ver": "1", "name": "Order", "org": "Department"}
    visits = [{"objid": f"do_3100{n:04}", "objtype": "Content", "objver": "1", "index": n} for n in range(4)]
    return {
        "START": {"type": "content", "mode": "play", "duration": 0, "pageid": page, "uaspec": {
            "agent": "Chrome", "ver": "126.0.0.0", "system": "Linux", "platform": "WebKit", "raw": agent}},
        "END": {"type": "content", "mode": "play", "duration": seconds, "pageid": page, "summary": [
            {"progress": 100}, {"totallength": 12}, {"visitedlength": 12}, {"totalseekedlength": 0}]},
        "IMPRESSION": {"type": "view", "subtype": "paginate", "pageid": page, "uri": f"/play/content/{content}",
                       "duration": seconds, "visits": visits},
        "INTERACT": {"type": "TOUCH", "subtype": "click", "id": f"button-{seconds}", "pageid": page, "target": target,
                     "extra": {"pos": [{"x": seconds, "y": seconds}], "values": ["expanded", "online", page]}},
        "ASSESS": {"item": item, "index": 1, "pass": "Yes", "score": 1, "resvalues": [{"1": "{\"text\":\"B\"}"}],
                   "duration": seconds},
        "RESPONSE": {"target": target, "type": "CHOOSE", "values": [{"option1": "An answer"}]},
        "INTERRUPT": {"type": "background", "pageid": page},
        "FEEDBACK": {"rating": chance.randrange(1, 6), "comments": "Very useful"},
        "SHARE": {"dir": "In", "type": "File", "items": shared},
        "AUDIT": {"props": ["medium", "board", "grade"], "state": "Updated", "prevstate": "Created"},
        "ERROR": {"err": "ERR_DATA_NOT_FOUND", "errtype": "system", "stacktrace": "    at a.b.C\n" * 12},
        "LOG": {"type": "api_access", "level": "INFO", "message": "", "params": [{"url": "/search"}, {"status": 200}]},
        "SEARCH": {"query": "algebra", "size": seconds, "topn": [{"identifier": content}], "type": "content",
                   "filters": {"medium": ["English"]}, "sort": {}},
        "METRICS": {"system": "portal", "subsystem": "player", "metrics": [{"metric": "load", "value": 0.25}]},
        "SUMMARY": {"type": "session", "starttime": START, "endtime": START + seconds * 1000, "timespent": seconds,
                    "pageviews": 4, "interactions": 12, "mode": "play", "extra": [{"id": "progress", "value": "100"}]},
        "EXDATA": {"type": "partnerdata", "data": "x" * 64},
        "HEARTBEAT": {},
        "CB_AUDIT": {"state": "Draft", "props": ["WAT"], "cb_object": work_order, "cb_data": {"data": {}}},
    }[eid]  # fmt: skip


def fate_of(event: Event) -> Fate:
    """Return the outcome of an event that is sent once."""
    if event["eid"] == "LOG":
        return "log"
    if "spoilt" in event:
        return "failed"
    if event["eid"] in _SECONDARY:
        return "secondary"
    return {"ERROR": "error", "CB_AUDIT": "work_order"}.get(event["eid"], "primary")  # type: ignore[return-value]


def lookups() -> Iterator[tuple[int, str, Mapping[str, str] | str]]:
    """Yield the lookup data of devices, users and contents: Redis database, key, and a hash or a text."""
    for number in range(DEVICES):
        device = {
            "country_code": "IN",
            "country": "India",
            "state_code": "29",
            "state": "Karnataka",
            "city": "Bengaluru",
        }
        more = {"state_custom": "Karnataka", "state_code_custom": "29", "district_custom": "Bengaluru",
                "devicespec": '{"os":"Android 14","make":"x"}', "firstaccess": str(START)}  # fmt: skip
        yield 2, f"device-{number}", {**device, **more}
    for number in range(USERS):
        user = {"usertype": "teacher", "grade": '["Class 8"]', "language": '["English"]', "subject": '["Science"]',
                "state": "Karnataka", "district": "Mysuru", "usersignintype": "Self-Signed-In"}  # fmt: skip
        yield 12, f"user:user-{number}", user
    for number in range(CONTENTS):
        content = {"name": f"Content {number}", "objectType": "Content", "contentType": "Resource",
                   "mimeType": "video/mp4", "framework": "NCF", "board": "CBSE", "medium": ["English"],
                   "subject": ["Science"], "gradeLevel": ["Class 8"], "channel": "in.ekstep", "status": "Live",
                   "pkgVersion": 1, "lastPublishedOn": "2025-06-15T13:06:56.090+0000"}  # fmt: skip
        if number % 10 == 0:
            content["questionType"] = "Registration"
        yield 5, f"do_{31_000_000 + number}", json.dumps(content)


def main() -> None:
    """Write batches to standard output or to a topic."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--size", type=int, default=20, help="events per batch")
    parser.add_argument("--seed", type=int, default=1)
    # events older than some months are not denormalised
    yesterday = datetime.now(UTC).date() - timedelta(days=1)
    parser.add_argument("--start", type=_millis, default=_millis(f"{yesterday}"), metavar="TIME",
                        help="when the first session begins, UTC; default: yesterday's midnight")  # fmt: skip
    parser.add_argument("--brokers", help="host:port of Kafka; otherwise the batches are printed")
    parser.add_argument("--topic", default="dev.telemetry.ingest")
    options = parser.parse_args()
    batches = Generator(options.seed, options.size, start=options.start).batches(options.batches)
    fates: Counter[str] = Counter()
    send = _producer(options.brokers, options.topic) if options.brokers else None
    for batch in batches:
        fates.update(fate for _, fate in batch.sent)
        if send is None:
            print(batch.text)
        else:
            send(batch.text)
    if send is not None:
        send(None)
    print(json.dumps({"events": fates.total(), **fates}), file=sys.stderr)


def _millis(text: str) -> int:
    time = datetime.fromisoformat(text)
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)


def _producer(brokers: str, topic: str) -> Any:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": brokers, "linger.ms": 20, "enable.idempotence": True})

    def send(text: str | None) -> None:
        if text is None:
            if producer.flush(60):
                raise SystemExit(f"{brokers} did not accept all batches")
            return
        while True:
            try:
                producer.produce(topic, text)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)

    return send


if __name__ == "__main__":
    main()
