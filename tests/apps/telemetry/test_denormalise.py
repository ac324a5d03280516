"""The fixtures of upstream's denormalisation: every row of EXPECTED.md about it, as upstream has it and corrected."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pytest
from tests.apps.telemetry.application import Application, by_mid, fixture, line

from headrace.testing.harness import ProjectHarness

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

NOW = datetime.now(UTC)
TIMES = {"1600000000001": NOW, "1500000000001": NOW - timedelta(days=152), "1900000000001": NOW + timedelta(days=31)}
FOUND_BY_IP = "telemetryEvent with another device"
PRIMARY = {"AUDIT", "SUMMARY", "ME_DEVICE_SUMMARY"}
LOOKUPS = {
    "devices": {
        "264d679186d4b0734d858d4e18d4d31e": "deviceCacheData1",
        "45f32f48592cb9bcf26bef9178b7bd20abe24932": "deviceCacheData2",
        FOUND_BY_IP: "deviceCacheData3",
    },
    "users": {
        "b7470841-7451-43db-b5c7-2dcf4f8d3b23": "userCacheData1",
        "610bab7d-1450-4e54-bf78-c7c9b14dbc81": "userCacheData3",
    },
    "dialcodes": {"GWNI38": "dialcodeCacheData1", "PCZKA3": "dialcodeCacheData2"},
    "contents": {
        "do_31249064359802470412856": "contentCacheData1",
        "do_312526125187809280139353": "contentCacheData2",
        "do_312526125187809280139355": "contentCacheData3",
        "do_312523863923441664117896": "contentCacheData4",
        "7426472e-8b1a-4387-8b7a-962cb6cda006": "contentCacheData5",
        "do_31331086175718604812701": "collectionCache1",
    },
}


def event(name: str) -> str:
    """An event with times of today."""
    text = fixture(f"de-normalization/{name}.json")
    for written, meant in TIMES.items():
        text = text.replace(written, str(round(meant.timestamp() * 1000)))
    return text


EVENTS = [event(f"telemetrEvents.{number:02}") for number in range(1, 18)]
SUMMARIES = [event(f"summaryEvents.{number:02}") for number in range(1, 5)]


def cached(name: str) -> str:
    return fixture(f"de-normalization/{name}.json")


@dataclass(frozen=True)
class Outcome:
    rows: list[dict[str, Any]]

    @cached_property
    def topics(self) -> dict[str, list[dict[str, Any]]]:
        found = defaultdict(list)
        for row in self.rows:
            found[row["topic"]].append(json.loads(row["value"]))
        return dict(found)

    def one(self, mid: str, topic: str = "dev.telemetry.denorm") -> dict[str, Any]:
        return dict(by_mid(self.topics[topic])[mid])

    def flags(self, mid: str, topic: str = "dev.telemetry.denorm") -> dict[str, bool]:
        told = self.one(mid, topic)["flags"]
        return {name.removesuffix("_denorm"): value for name, value in told.items() if name.endswith("_denorm")}


def run(
    app: Application,
    spark: SparkSession,
    extra: Iterable[str] = (),
    errors: Sequence[str] = (),
    summaries: Sequence[str] = (),
) -> Outcome:
    for place, entries in LOOKUPS.items():
        known = [line({"key": k, "value": cached(v)}) for k, v in entries.items()]
        dated = line({"key": "DATED", "value": line({"name": "n", "identifier": "DATED", **DATES})})
        broken = line({"key": "BROKEN", "value": "no json"})
        app.give(f"lookups/{place}.jsonl", [*known, dated, broken] if place in ("contents", "dialcodes") else known)
    first = [one for one in EVENTS if json.loads(one)["eid"] in PRIMARY]
    given = {
        "telemetry_unique_primary": [*first, *extra],
        "telemetry_unique_secondary": [one for one in EVENTS if one not in first],
        "telemetry_error": errors,
        "telemetry_derived": [*SUMMARIES, *summaries],
    }
    with ProjectHarness(app.project(), spark) as harness:
        for stream, texts in given.items():
            if texts:
                harness.feed(stream, [{"value": text} for text in texts])
        harness.run("denormalise", "denormalise_summary")
        assert harness.dead_letters() == []
        return Outcome([*harness.rows("denormalise"), *harness.rows("denormalise_summary")])


@pytest.fixture(scope="module")
def upstream(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """`compat: sunbird`."""
    app = Application(tmp_path_factory.mktemp("app"), compat="sunbird", numbers="double", ignore_months=4)
    return run(app, spark)


@pytest.fixture(scope="module")
def corrected(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The default, with events that upstream loses, spoils or stumbles over."""
    app = Application(tmp_path_factory.mktemp("app"), ignore_months=4)
    by_ip = {**json.loads(event("telemetryEvent")), "mid": "by-ip"}
    by_ip["context"]["did"] = FOUND_BY_IP
    lost = {**json.loads(EVENTS[7]), "mid": "lost", "object": {**OBJECT, "rollup": {"l1": "nowhere", "l2": "either"}}}
    own = {**json.loads(EVENTS[7]), "mid": "own", "object": {**OBJECT, "rollup": {"l1": "x", "l2": OBJECT["id"]}}}
    timeless = {"mid": "timeless", "eid": "START", "ets": "soon"}
    beyond = {**json.loads(EVENTS[1]), "mid": "beyond", "ets": 1e300}
    dated = {**json.loads(EVENTS[1]), "mid": "dated", "object": {"id": "DATED", "type": "Content"}}
    dialled = {**dated, "mid": "dialled", "object": {"id": "dated", "type": "qr"}}
    broken = {**dated, "mid": "broken", "object": {"id": "BROKEN", "type": "Content"}}
    text = {**json.loads(EVENTS[1]), "mid": "text", "userdata": "a text", "contentdata": 5}
    twice = line({**text, "mid": "twice"}).replace('"a text"', '{"a":1,"a":2}')
    extra = [*map(line, (by_ip, lost, own, timeless, beyond, dated, dialled, broken, text)), twice, "no json", "[1]"]
    errors = [line({**json.loads(EVENTS[1]), "eid": "ERROR", "mid": "error"})]
    return run(app, spark, extra, errors, ["no summary"])


DATES = {
    "lastUpdatedOn": "yesterday",
    "lastPublishedOn": "",
    "generated_on": "2018-08-01T13:41:53.695",
    "published_on": "x",
}
OBJECT = {"id": "do_312526125187809280139352", "type": "Content", "version": ""}


@pytest.fixture(params=["upstream", "corrected"])
def either(request: pytest.FixtureRequest) -> Outcome:
    """What both have in common."""
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


def test_mid1_has_a_user_and_no_device(either: Outcome) -> None:
    assert either.flags("mid1") == {"device": False, "user": True}
    userdata = {"usersignintype": "Anonymous", "usertype": "TEACHER", "userlogintype": "NA"}
    assert either.one("mid1")["userdata"] == userdata
    keys = {
        json.loads(row["value"])["mid"]: row["key"] for row in either.rows if row["topic"] == "dev.telemetry.denorm"
    }
    assert keys["mid1"] == "758e054a400f20f7677f2def76427dc13ad1f837"
    assert keys["mid12"] is None


def test_mid2_has_device_user_content_and_place(either: Outcome) -> None:
    assert either.flags("mid2") == {"device": True, "user": True, "content": True, "loc": True}
    found = either.one("mid2")
    content, device, user = found["contentdata"], found["devicedata"], found["userdata"]
    assert (content["lastsubmittedon"], content["lastpublishedon"]) == (1529068016090, 1.571999041881e12)
    assert (content["channel"], content["contenttype"], content["keywords"]) == ("in.ekstep", "Resource", ["Story"])
    assert (device["statecustomcode"], device["countrycode"], device["firstaccess"]) == ("29", "IN", 1571999041881)
    assert (device["districtcustom"], device["iso3166statecode"]) == ("BENGALURU URBAN SOUTH", "")
    assert {name: user[name] for name in ("userlogintype", "usersignintype", "usertype", "usersubtype", "state")} == {
        "userlogintype": "Student",
        "usersignintype": "Self-Signed-In",
        "usertype": "administrator",
        "usersubtype": "deo,hm",
        "state": "Telangana",
    }
    assert (user["subject"], user["cluster"], user["block"]) == (["English"], "Cluster001", "Sri Sai ACC Block")
    assert user["schoolname"] == "[RPMMAT M.S UDHADIH"
    assert "grade" not in user


def test_mid3_has_a_collection_and_a_declared_place(either: Outcome) -> None:
    assert either.flags("mid3") == {"device": True, "user": False, "content": True, "coll": True, "loc": True}
    found = either.one("mid3")
    collection = found["collectiondata"]
    assert (collection["contenttype"], collection["framework"]) == ("Asset", "NCF")
    assert (collection["name"], collection["lastupdatedon"]) == ("do_312526125187809280139355", 1489169400448)
    place = {"state": "Maharashtra", "district": "Raigad"}
    assert found["derivedlocationdata"] == {**place, "from": "user-declared"}
    assert found["devicedata"]["devicespec"]["edisk"] == "25.42"
    assert found["devicedata"]["userdeclared"] == place


def test_mid4_and_mid5_have_dial_codes(either: Outcome) -> None:
    assert either.flags("mid4") == {"device": True, "user": True, "dialcode": True, "loc": True}
    assert either.flags("mid5") == {"device": True, "user": False, "dialcode": True, "loc": True}
    dialcode = either.one("mid5")["dialcodedata"]
    assert (dialcode["batchcode"], dialcode["channel"]) == ("jkpublisher.20180801T122031", "01254592085869363222")
    assert (dialcode["generatedon"], dialcode["publishedon"]) == (1.571999041881e12, 1533130913695)


def test_mid6_has_a_dial_code_that_nobody_knows(either: Outcome) -> None:
    assert either.flags("mid6")["dialcode"] is False
    assert "dialcodedata" not in either.one("mid6")


def test_mid7_is_anonymous_and_its_own_collection(either: Outcome) -> None:
    assert either.flags("mid7") == {"device": True, "content": True, "loc": True}
    assert "userdata" not in either.one("mid7")


def test_mid8_has_two_levels_above_it_and_no_device(either: Outcome) -> None:
    assert either.flags("mid8") == {"content": False, "coll": True, "l2": True}
    wanted = {
        "contenttype": "TextBook",
        "mimetype": "application/vnd.ekstep.content-collection",
        "channel": "0123221617357783046602",
        "board": "State (Maharashtra)",
        "name": "test",
        "framework": "mh_k-12_1",
    }
    level = either.one("mid8")["l2data"]
    assert {name: level[name] for name in wanted} == wanted
    assert "lastupdatedon" not in level


def test_mid9_is_from_the_future(either: Outcome) -> None:
    # the day may have ended between
    assert either.one("mid9")["ets"] in {end_of_day(NOW), end_of_day(datetime.now(UTC))}


def end_of_day(moment: datetime) -> int:
    return round((moment.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)).timestamp()) * 1000 - 1


def test_an_audit_keeps_what_it_brings(either: Outcome) -> None:
    mid = "AUDIT:eae9854a08764ce0c5c17f7ad8abe3e6"
    assert either.flags(mid) == {"device": False, "user": False, "content": True}
    content = either.one(mid)["contentdata"]
    assert (content["objectType"], content["objecttype"], content["name"]) == (
        "Content",
        "Content",
        "Walk a little slower",
    )
    assert either.one(mid)["userdata"] == {"firstname": "A512", "usersignintype": "Anonymous", "userlogintype": "NA"}


def test_mid12_has_no_device_and_a_summary_is_taken(either: Outcome) -> None:
    assert either.flags("mid12") == {"user": True}
    flags = either.flags("SUMMARY:a3e517153c4ba392297e70521aa5e17a")
    assert flags == {"device": True, "user": True, "content": True, "loc": True}


def test_an_audit_of_a_user_is_looked_up_as_content(either: Outcome) -> None:
    mid = "LP.AUDIT.d14d8be6-da4e-4ee9-b833-fd86d57b8808"
    assert either.flags(mid) == {"device": False, "user": False, "content": True, "coll": True}
    wanted = {
        "name": "Anction Words",
        "mimetype": "application/vnd.ekstep.content-collection",
        "objecttype": "Content",
        "contenttype": "TextBookUnit",
        "status": "Draft",
    }
    for block in ("contentdata", "collectiondata"):
        found = either.one(mid)[block]
        assert {name: found[name] for name in wanted} == wanted


def test_the_counts_of_upstream(upstream: Outcome) -> None:
    events = upstream.topics["dev.telemetry.denorm"]
    counts = Counter((name, value) for one in events for name, value in one["flags"].items())
    assert len(events) == 13
    hits_and_misses = {
        name: (counts[f"{name}_denorm", True], counts[f"{name}_denorm", False])
        for name in ("content", "user", "dialcode", "device")
    }
    assert hits_and_misses == {"content": (6, 2), "user": (5, 5), "dialcode": (2, 1), "device": (8, 3)}
    assert counts["loc_denorm", True] == 8
    assert "dev.telemetry.failed" not in upstream.topics


def test_what_upstream_drops_says_why(corrected: Outcome) -> None:
    failed = by_mid(one for one in corrected.topics["dev.telemetry.failed"] if "mid" in one and one["mid"] != "mid6")
    assert {mid: one["metadata"]["denorm_error"] for mid, one in failed.items()} == {
        "mid10": "older than 4 months",
        "mid11": "events of type INTERRUPT are skipped",
        "CFBA22543AA3EAD4C2737931D34F2E8D": "events of type ME_DEVICE_SUMMARY are skipped",
        "timeless": "ets is missing or not a number",
        "beyond": "ets is missing or not a number",
    }
    assert failed["mid10"]["flags"]["denorm_processed"] is False
    assert failed["mid10"]["metadata"]["src"] == "Denormalization"
    unreadable = [one["event"] for one in corrected.topics["dev.telemetry.failed"] if "event" in one]
    assert sorted(unreadable) == ["[1]", "no json", "no summary"]


def test_every_event_is_accounted_for(corrected: Outcome) -> None:
    given = len(EVENTS) + 12 + 1
    told = sum(
        len(corrected.topics[f"dev.{name}"]) for name in ("telemetry.denorm", "telemetry.failed", "druid.events.error")
    )
    # of the summaries the one that is none
    assert told == given + 1
    assert len(corrected.topics["dev.telemetry.denorm"]) == 13 + 8


def test_dates_that_are_none_are_0(corrected: Outcome) -> None:
    assert corrected.one("dated")["contentdata"] == {"name": "n", "lastupdatedon": 0, "lastpublishedon": 0}
    dialcode = corrected.one("dialled")["dialcodedata"]
    assert (dialcode["generatedon"], dialcode["publishedon"]) == (1533130913695, 0)


def test_an_entry_of_a_cache_that_cannot_be_read_is_none(corrected: Outcome) -> None:
    assert corrected.flags("broken")["content"] is False


def test_a_block_that_is_no_object_gives_way(corrected: Outcome) -> None:
    for mid in ("text", "twice"):
        found = corrected.one(mid)
        assert (found["userdata"]["state"], found["contentdata"]["channel"]) == ("Telangana", "in.ekstep")


def test_a_place_by_address(corrected: Outcome) -> None:
    found = corrected.one("by-ip")
    assert found["derivedlocationdata"] == {"state": "Maharashtra", "district": "Mumbai", "from": "ip-resolved"}
    assert found["devicedata"]["userdeclared"] == {"state": "", "district": ""}
    assert found["devicedata"]["uaspec"]["system"] == "Android"


def test_levels_that_nobody_knows_are_not_found(corrected: Outcome) -> None:
    assert corrected.flags("lost") == {"content": False, "coll": False, "l2": False}
    assert not {"collectiondata", "l2data"} & corrected.one("lost").keys()
    assert corrected.flags("own") == {"content": False, "coll": False}


def test_errors_have_a_topic_of_their_own(corrected: Outcome) -> None:
    assert corrected.flags("error", "dev.druid.events.error")["content"] is True


def test_numbers_stay_as_they_were_written(corrected: Outcome, upstream: Outcome) -> None:
    assert isinstance(corrected.one("mid2")["ets"], int)
    assert isinstance(upstream.one("mid2")["ets"], float)


def test_summaries(either: Outcome) -> None:
    summary, unique = "dev.druid.events.summary", "dev.telemetry.derived.unique"
    assert sorted(one["mid"] for one in either.topics[summary]) == ["mid1", "mid2"]
    assert sorted(one["mid"] for one in either.topics[unique]) == ["CFBA22543AA3EAD4C2737931D34F2E8D", "mid1", "mid2"]
    assert [one["mid"] for one in either.topics["dev.telemetry.duplicate"]] == ["mid1"]
    assert either.topics["dev.telemetry.duplicate"][0]["flags"] == {"summary_denorm_duplicate": True}
    assert either.one("mid1", unique)["flags"] == {"summary_denorm_duplicate": False}
    assert "devicedata" not in either.one("mid1", unique)
    assert either.one("mid1", summary)["dimensions"]["did"] == "45f32f48592cb9bcf26bef9178b7bd20abe24932"
    assert either.flags("mid1", summary) == {"device": True, "user": True, "loc": True}
    assert either.flags("mid2", summary) == {"device": True, "user": True, "content": True, "loc": True, "coll": True}
