"""What the flows that keep caches and tables read in tests: upstream's fixtures and more, and services that answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import redis
from tests.apps.telemetry.application import APP, FIXTURES, fixture, line

if TYPE_CHECKING:
    from headrace.testing.services import Redis

ACTOR = "59c3c2b7-b32b-4d9a-9d02-220e73004d66"
ATTEMPT = json.loads(fixture("assessment-aggregator/BATCH_ASSESS_EVENT.json"))
FREE = ATTEMPT | {"courseId": "free"}
LONG = "a review of more than one hundred letters, " * 3


def uuid_of(second: int) -> str:
    """A time-based UUID of a second of the year 2024."""
    ticks = (1_704_067_200 + second) * 10_000_000 + 0x01B21DD213814000
    digits = f"{ticks:015x}"
    return f"{digits[7:]}-{digits[3:7]}-1{digits[:3]}-8000-000000000000"


def rating(user: str, stars: float, second: int, review: str = "") -> str:
    given = {"rating": stars, "review": review, "updatedOn": uuid_of(second)}
    return line(
        {"activity_id": "do_1", "activity_Type": "Course", "user_id": user, "prevValues": {}, "updatedValues": given}
    )


def scored(score: Any) -> dict[str, Any]:
    """An ASSESS event with one answer."""
    event: dict[str, Any] = ATTEMPT["events"][0]
    return event | {"ets": float(event["ets"]), "edata": event["edata"] | {"score": score}}


def audit(document: dict[str, Any], **changes: Any) -> str:
    return line(document | changes)


COMPETENCY = {
    "eid": "CB_AUDIT",
    "mid": "CB.competency",
    "actor": {"id": ACTOR},
    "context": {"channel": "old"},
    "edata": {"cb_object": {"type": "Competency", "org": None}},
}
ORDER = json.loads(fixture("igot-cb-preprocessor/WO_EVENT.json"))
INPUT = {
    "events.deviceprofile": [fixture(f"device-profile-updater/deviceProfileEvents.0{n}.json") for n in range(1, 6)]
    + [
        "no JSON",
        line({"device_id": "late", "api_last_updated_on": 9 * 10**18}),
        line({"device_id": "first", "api_last_updated_on": 1, "first_access": 9e17}),
        line({"device_id": "zero", "api_last_updated_on": 1, "state": "a\0b"}),
        line({"device_id": "d" * 3000, "api_last_updated_on": 1}),
        '\t{"device_id": "float", "api_last_updated_on": 1.568377184E12, "first_access": "1568377184000.0", '
        '"uaspec": {"agent":"a","agent":"b"}}',
    ],
    "telemetry.audit": [
        *(fixture(f"user-cache-updater-v2/telemetrEvents.0{n}.json") for n in range(1, 10)),
        fixture("user-cache-updater-v2/telemetryEventWithAppPid.json"),
        fixture("user-cache-updater-v2/telemetrEvents.01.json").replace('"user-1"', '"user-9"'),
        "no JSON",
        '{"ets": 1e300, "object": {"id": 5, "type": "user"}, "edata": {"state": "create"}, '
        '"context": {"cdata": [{"type": "UserRole", "id": "r"}]}}',
    ],
    "learning.graph.events": [
        fixture(f"content-cache-updater/{file.name}") for file in sorted((FIXTURES / "content-cache-updater").iterdir())
    ]
    + [
        "{}",
        line({"nodeUniqueId": "odd", "ets": 9e17, "transactionData": {"properties": {"name": "no change"}}}),
        '{"nodeUniqueId": "twice", "transactionData": {"properties": {"name": {"nv": {"x": 1, "x": 2.50}}}}}',
    ],
    "telemetry.cb.audit": [line(ORDER), line(ORDER), line(COMPETENCY), "no JSON"],
    "telemetry.assess": [
        *(
            fixture(f"assessment-aggregator/{name}.json")
            for name in (
                "BATCH_ASSESS_EVENT",
                "BATCH_ASSESS__OLDER_EVENT",
                "BATCH_ASSESS_FAIL_EVENT",
                "LATEST_BATCH_ASSESS_EVENT",
            )
        ),
        line(ATTEMPT | {"contentId": "elsewhere"}),
        line(ATTEMPT | {"courseId": "other", "contentId": "short"}),
        line(ATTEMPT | {"courseId": "other", "contentId": "unknown"}),
        line(ATTEMPT | {"events": []}),
        "no JSON",
        line(FREE | {"attemptId": "float", "assessmentTs": 1587988642000.0, "events": [scored(0.5)]}),
        line(FREE | {"assessmentTs": 1e300}),
        line(FREE | {"events": "none"}),
        line(FREE | {"events": [scored("many")]}),
        line(FREE | {"events": [scored("NaN")]}),
        line(FREE | {"events": [scored(1) | {"ets": 9e17}]}),
        line(FREE | {"events": [scored(1) | {"mid": "a\0b"}]}),
        line(FREE | {"attemptId": "a" * 5000}),
    ],
    "rating.event": [
        rating("u1", 4.5, 1, LONG),
        rating("u1", 3.0, 3, LONG + "!"),
        rating("u1", 1.0, 2, "too late"),
        rating("u2", 5.0, 4),
        rating("u3", 5.0, 5),
        "no JSON",
        rating("\0", 5.0, 6),
        rating("u2", 1.0, 7, "a\0b"),
        rating("u2", float("nan"), 8).replace("NaN", '"NaN"'),
        rating("u2", 1.0, 9).replace(uuid_of(9), "12:30"),
    ],
}
FLOWS = (
    "workorders", "device_cache", "device_table", "user_cache", "content_cache", "dialcode_cache", "assess_check",
    "assessment_aggregator", "certificates", "rating_check", "ratings",
)  # fmt: skip


class Services(BaseHTTPRequestHandler):
    """The user, dial code and content services, as far as tests ask them."""

    def do_HEAD(self) -> None:
        self._say(200, {})

    def do_GET(self) -> None:
        kind, _, name = self.path.partition("?")[0].strip("/").partition("/")
        if kind == "user":
            assert self.path.endswith("?fields=locations,organisations")
            self._say(*_user(name))
        elif kind == "dialcode" and name == "X3J6W1":
            self._say(200, {"result": {"dialcode": {"identifier": name, "channel": "c"}}})
        elif kind == "content" and name == ATTEMPT["contentId"]:
            self._say(200, {"responseCode": "OK", "result": {"content": {"totalQuestions": 3}}})
        else:
            self._say(404, {"responseCode": "RESOURCE_NOT_FOUND"})

    def _say(self, status: int, document: Any) -> None:
        text = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text if self.command == "GET" else b"")

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: what was asked is seen in what comes of it."""


def _user(name: str) -> tuple[int, Any]:
    known = FIXTURES / "user-cache-updater-v2" / f"api_response.{name.replace('-', '')}.json"
    if name == "user-9":
        return 404, json.loads((known.parent / "api_response.user2.json").read_text())
    if name == "user-2" or not known.exists():
        return 400, json.loads((known.parent / "api_response.clientError.json").read_text())
    return 200, json.loads(known.read_text())


@contextmanager
def services() -> Iterator[str]:
    """The services; their address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Services)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


CACHES = {"device_cache": 2, "content_cache": 5, "dialcode_cache": 6, "relation_cache": 10, "user_cache": 12}


def variables(http: str, cache: Redis, database: str) -> dict[str, str]:
    """Where things are, for profile `kafka`."""
    return {
        **{name: f"redis://{cache.address}/{number}" for name, number in CACHES.items()},
        "POSTGRES_URL": database,
        "user_read_url": f"{http}/user",
        "dialcode_url": f"{http}/dialcode",
        "content_read_url": f"{http}/content",
    }


def fill_tables(database: Any) -> None:
    """The tables of the application, and who is enrolled."""
    database.execute((APP / "sql/postgres.sql").read_text())
    database.execute("INSERT INTO user_enrolments VALUES ('u1', 'do_1', 'b'), ('u2', 'do_1', 'b')")


def fill(server: Redis) -> None:
    """What upstream's tests begin with."""

    def database(number: int) -> Any:
        return redis.Redis(port=server.port, db=number)

    seen = {"api_last_updated_on": "1568377184000", "firstaccess": "1568377184000", "state": "Tamil Nadu"}
    database(2).hset("232455", mapping={**seen, "country_code": "IN"})
    database(2).hset(
        "test-device", mapping={"api_last_updated_on": "1568377184000", "country_code": "IN", "firstaccess": "0"}
    )
    database(12).hset("user:user-3", mapping={"block": "of before", "userlogintype": "kept"})
    database(12).hset(f"user:{ACTOR}", mapping={"rootorgid": "01", "orgname": "Ministry"})
    database(6).set("X3J6W3", "held")
    database(5).set("short", '{"totalQuestions": 1}')
    for key, member in json.loads(fixture("assessment-aggregator/redis_cache.json"))[
        "redis_db10_sets_leafnodes"
    ].items():
        database(10).sadd(key, member)
