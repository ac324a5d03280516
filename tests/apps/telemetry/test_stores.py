"""The flows that keep caches and tables: on real Redis, PostgreSQL and HTTP as upstream does it, and corrected."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import redis
from tests.apps.telemetry.application import FIXTURES, Application, fixture, line
from tests.apps.telemetry.stores import (
    ACTOR,
    ATTEMPT,
    COMPETENCY,
    FLOWS,
    INPUT,
    LONG,
    ORDER,
    fill,
    fill_tables,
    services,
    uuid_of,
    variables,
)
from tests.conftest import unavailable

from headrace.engine.letters.dead_letters import read_dead_letters
from headrace.engine.state.state import StateDir
from headrace.testing.harness import ProjectHarness
from headrace.testing.services import Postgres, Redis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.service]


@dataclass(frozen=True)
class Stores:
    """What there is after everything has run."""

    application: Application
    letters: list[dict[str, Any]]
    redis: Redis
    database: Any

    def cache(self, number: int) -> Any:
        return redis.Redis(port=self.redis.port, db=number, decode_responses=True)

    def letters_of(self, flow: str) -> list[str]:
        return sorted(letter["reason"] for letter in self.letters if letter["flow"] == flow)


@pytest.fixture(scope="module")
def stores(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stores]:
    for problem in (Redis.problem(), Postgres.problem()):
        if problem is not None:
            unavailable(problem)
    folder = tmp_path_factory.mktemp("telemetry")
    with (
        services() as http,
        Redis() as cache,
        Postgres() as server,
        psycopg.connect(server.env["POSTGRES_URL"], autocommit=True) as database,
    ):
        fill_tables(database)
        places = variables(http, cache, server.env["POSTGRES_URL"])
        application = Application(folder, "kafka", **places, compat="sunbird")
        for topic, lines in INPUT.items():
            application.give(f"in/{topic}/0.jsonl", lines)
        fill(cache)
        application.overrides += _with_files()
        application.run(spark, *FLOWS)
        state = StateDir.of(application.project().context)
        yield Stores(application, read_dead_letters(state.dead_letters).to_pylist(), cache, database)


def _with_files() -> list[str]:
    """The streams of Kafka are files, and so are the topics; caches and tables stay."""
    streams = [*INPUT, "telemetry.assess.checked", "rating.checked"]
    source = "{{type: files, path: '{{in/{0},out/dev.{0}}}', missing: wait}}"
    topics = "sinks.topics={type: files, path: out, contains: lines, folder_column: topic}"
    return [topics, *(f"streams.{name.replace('.', '_')}.source={source.format(name)}" for name in streams)]


def test_device_cache(stores: Stores) -> None:
    first = stores.cache(2).hgetall("232455")
    assert first["api_last_updated_on"] == "1568379184000"
    assert (first["state"], first["district_custom"]) == ("Karnataka", "Karnataka")
    assert first["user_declared_state"] == "Karnataka,'s"
    assert (first["firstaccess"], first["state_code_custom"]) == ("1568377184000", "29.0")
    assert first["devicespec"].startswith("{'os':'Android 6.0'")
    other = stores.cache(2).hgetall("test-device")
    assert (other["firstaccess"], other["country_code"], "user_declared_on" in other) == ("1568377184000", "IN", False)
    assert stores.cache(2).hgetall("568089542")["user_declared_on"] == "1568377184000"
    third = {"api_last_updated_on": "1568377184000", "firstaccess": "1568377184000"}
    assert stores.cache(2).hgetall("float") == {**third, "uaspec": '{"agent":"a","agent":"b"}'}
    assert stores.cache(2).dbsize() == 4
    assert stores.letters_of("device_cache") == ["condition-not-met"] * 4 + ["missing-value"] * 2


def test_device_table(stores: Stores) -> None:
    columns = "device_id, state, district_custom, user_declared_state, first_access, user_declared_on, device_spec"
    rows = stores.database.execute(f"SELECT {columns} FROM dev_device_profile ORDER BY 1").fetchall()
    first = datetime(2019, 9, 13, 12, 53, 4, tzinfo=UTC)
    declared = datetime(2019, 9, 13, 12, 19, 44, tzinfo=UTC)
    assert rows[0][:6] == ("232455", "Karnataka", "Karnataka", "Karnataka,'s", first, declared)
    assert json.loads(rows[0][6])["os"] == "Android 6.0"
    assert rows[1][:6] == ("568089542", "Karnataka", None, "Karnataka's", declared, declared)
    assert [row[0] for row in rows[2:]] == ["float", "test-device"]
    assert stores.letters_of("device_table") == stores.letters_of("device_cache")


def test_user_cache(stores: Stores) -> None:
    user = stores.cache(12).hgetall("user:user-1")
    profile = user.pop("profileusertypes")
    assert profile.startswith('\\[{"subType":"hm","type":"administrator"},')
    assert profile.endswith("\\]")
    assert user == {
        "firstname": "Utkarsha", "lastname": "Kapoor", "state": "Odisha", "district": "CUTTACK", "block": "BLOCK1",
        "cluster": "CLUSTER1", "schooludisecode": "3183211", "schoolname": "DPS, MATHURA",
        "usertype": "administrator,teacher,other,parent", "usersubtype": "hm,crp", "board": "IGOT-Health",
        "rootorgid": "0127738024883077121", "orgname": "Root Org2", "subject": '["IRCS"]', "language": '["English"]',
        "grade": '["Volunteers"]', "framework": "igot_health", "medium": '["English"]', "userlogintype": "teacher",
        "usersignintype": "Self-Signed-In", "userid": "a962a4ff-b5b5-46ad-a9fa-f54edf1bcccb",
    }  # fmt: skip
    tenth = stores.cache(12).hgetall("user:user-10")
    assert (tenth["block"], tenth["schoolname"]) == ("BLOCK1\\]", "\\[RPMMAT M.S UDHADIH")
    assert stores.cache(12).hgetall("user:user-2") == {"usersignintype": "Self-Signed-In"}
    assert stores.cache(12).hgetall("user:user-5") == {"usersignintype": "Validated"}
    third = stores.cache(12).hgetall("user:user-3")
    assert ("block" in third, third["userlogintype"], third["cluster"]) == (False, "kept", "CLUSTER1")
    assert not stores.cache(12).exists("user:user-7", "user:do_r8r8rew97we9r8", "user:user-9")
    assert stores.cache(12).hgetall("user:5") == {"userlogintype": "r"}
    assert stores.letters_of("user_cache") == ["condition-not-met"] * 2


def test_content_and_dial_code_caches(stores: Stores) -> None:
    content = json.loads(stores.cache(5).get("do_312999792564027392148"))
    assert (content["board"], content["gradeLevel"], content["copyright"]) == ("CBSE", ["Class 8"], "Ekstep")
    assert (content["keywords"], content["topic"]) == (["Story"], [])
    assert content["lastUpdatedOn"] == 1592159170000
    second = json.loads(stores.cache(5).get("do_312796455301447680117634.img"))
    assert second == {"subject": ["Hindi"], "gradeLevel": ["Class 5"]}
    assert json.loads(stores.cache(5).get("do_31269950653767680013604"))["lastStatusChangedOn"] == ""
    assert stores.cache(5).get("twice") == '{"name":{"x": 1, "x": 2.50}}'
    assert stores.letters_of("content_cache") == ["condition-not-met"] + ["missing-value"] * 3
    assert stores.cache(6).get("X3J6W3") == "held"
    assert json.loads(stores.cache(6).get("X3J6W1")) == {"identifier": "X3J6W1", "channel": "c"}
    assert stores.cache(6).dbsize() == 2
    assert stores.letters_of("dialcode_cache") == ["condition-not-met"] + ["missing-value"] * 4


def test_work_orders(stores: Stores) -> None:
    topics = stores.application.topics()
    audits = {one["mid"]: one for one in topics["dev.druid.cb.audit"]}
    assert set(audits) == {ORDER["mid"], "CB.competency"}
    fixed = audits["CB.competency"]
    assert (fixed["context"]["channel"], fixed["edata"]["cb_object"]["org"]) == ("01", "Ministry")
    assert audits[ORDER["mid"]]["context"] == ORDER["context"]
    (officer,) = topics["dev.druid.cb.work.order.officer"]
    assert officer["edata"]["cb_data"] == json.loads(fixture("igot-cb-preprocessor/WO_EVENT_POSITIONS_RESULT.json"))[0]
    (repeated,) = topics["dev.telemetry.duplicate"]
    assert (repeated["mid"], repeated["flags"]) == (ORDER["mid"], {"cb_duplicate": True})
    assert "dev.druid.cb.work.order.row" not in topics
    assert stores.letters_of("workorders") == ["not-json"]


def test_assessments(stores: Stores) -> None:
    rows = stores.database.execute(
        "SELECT attempt_id, grand_total, jsonb_array_length(question), last_attempted_on FROM assessment_aggregator "
        "ORDER BY attempt_id"
    ).fetchall()
    at = datetime(2020, 4, 27, 11, 57, 22, tzinfo=UTC)
    assert rows == [(ATTEMPT["attemptId"], "2.0/3.0", 3, at), ("float", "0.5/1.0", 1, at)]
    topics = stores.application.topics()
    reasons = [one.get("metadata", {}).get("validation_error", "none") for one in topics["dev.telemetry.assess.failed"]]
    assert sorted(reasons) == [
        "Failed to fetch the content meta for the content ID: unknown",
        "a field of the attempt or of an event has another type than it should",  # events
        "a field of the attempt or of an event has another type than it should",  # score
        "assessmentTs is not a time in milliseconds",
        "ets of an event is not a time in milliseconds",
        "ets of an event is not a time in milliseconds",
        "none",  # not part of the course, as upstream has it
        "none",  # more questions than the content has
        "none",  # no JSON
        "score or maxscore of an event is not a number",
        "the ids are too long, or there is a U+0000 in a text",
        "the ids are too long, or there is a U+0000 in a text",
    ]
    assert len(INPUT["telemetry.assess"]) == len(reasons) + len(topics["dev.telemetry.assess.checked"])


def test_certificates(stores: Stores) -> None:
    requests = stores.application.topics()["dev.issue.certificate.request"]
    assert len({one["mid"] for one in requests}) == len(requests) == 4
    assert {one["edata"]["userIds"][0] for one in requests} == {ATTEMPT["userId"]}
    of = {one["object"]["id"].removeprefix(f"{ATTEMPT['batchId']}_") for one in requests}
    assert of == {ATTEMPT["courseId"], "free"}


def test_activity_of_users(stores: Stores) -> None:
    content = ATTEMPT["contentId"]
    (row,) = stores.database.execute(
        "SELECT context_id, aggregates, agg_details FROM user_activity_agg WHERE activity_id <> 'free'"
    ).fetchall()
    assert row[0] == f"cb:{ATTEMPT['batchId']}"
    assert row[1] == {f"score:{content}": 2, f"max_score:{content}": 3, f"attempts_count:{content}": 1}
    assert [(one["type"], one["score"]) for one in row[2]] == [("attempt_metrics", 2)]


def test_ratings(stores: Stores) -> None:
    failed = stores.application.lines("dev.rating.failedRating")
    given = INPUT["rating.event"]
    assert sorted(failed) == sorted([*given[4:6], *given[7:9]])
    assert (stores.letters_of("rating_check"), stores.letters_of("ratings")) == (["bad-value"], ["missing-value"])
    (summary,) = stores.database.execute("SELECT * FROM ratings_summary").fetchall()
    assert summary[:9] == ("do_1", "Course", 8.0, 2, 0, 0, 1, 0, 1)
    assert [(one["user_id"], one["rating"], one["review"]) for one in summary[9]] == [("u1", 3, LONG + "!")]
    lookup = stores.database.execute("SELECT userid, rating, updatedon FROM ratings_lookup ORDER BY 1").fetchall()
    assert lookup == [("u1", 3.0, uuid_of(3)), ("u2", 5.0, uuid_of(4))]


@pytest.fixture(scope="module")
def corrected(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProjectHarness]:
    """Some flows as they are without services and without upstream's quirks."""
    application = Application(tmp_path_factory.mktemp("corrected"))
    answer = (FIXTURES / "user-cache-updater-v2" / "api_response.user10.json").read_text()
    application.give("lookups/user_read.jsonl", [line({"key": "user-10", "answer": answer})])
    application.give("lookups/users.jsonl", [line({"key": ACTOR, "value": line({"rootorgid": "01"})})])
    published = json.loads(line(ORDER))
    published["edata"]["cb_data"]["data"]["status"] = "Published"
    unnamed = {name: value for name, value in COMPETENCY.items() if name != "mid"}
    with ProjectHarness(application.project(), spark) as harness:
        for stream, lines in {
            "telemetry_cb_audit": [line(published), line(unnamed), line(unnamed)],
            "events_deviceprofile": INPUT["events.deviceprofile"][:1],
            "telemetry_audit": INPUT["telemetry.audit"][8:9],
            "learning_graph_events": [fixture("content-cache-updater/contentUpdateData3.json")],
            "rating_event": INPUT["rating.event"][:1],
        }.items():
            harness.feed(stream, [{"value": one} for one in lines])
        harness.run("workorders", "device_cache", "user_cache", "content_cache", "rating_check")
        yield harness


def test_events_without_an_id_are_no_repeats_of_each_other(corrected: ProjectHarness) -> None:
    made = [row["topic"].removeprefix("dev.druid.cb.") for row in corrected.rows("workorders")]
    assert sorted(made) == ["audit"] * 3 + ["work.order.officer"] + ["work.order.row"] * 2
    channels = {json.loads(row["value"])["context"]["channel"] for row in corrected.rows("workorders")}
    assert channels == {"01", ORDER["context"]["channel"]}


def test_values_are_kept_as_they_are(corrected: ProjectHarness) -> None:
    (device,), (user,) = corrected.rows("device_cache"), corrected.rows("user_cache")
    assert dict(device["fields"])["state_code_custom"] == "29"
    assert dict(user["fields"])["schoolname"] == "[RPMMAT M.S UDHADIH"
    (content,) = corrected.rows("content_cache")
    assert json.loads(content["properties"])["lastUpdatedOn"] == 1592159170133


def test_what_fails_says_why(corrected: ProjectHarness) -> None:
    (row,) = corrected.rows("rating_check")
    assert row["topic"] == "dev.rating.failedRating"
    assert json.loads(row["value"])["metadata"] == {"validation_error": "the user is not enrolled", "src": "Rating"}
