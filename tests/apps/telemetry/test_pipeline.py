"""The fixtures of the upstream pipeline through the extractor, the preprocessor and the router before OLAP.

Every row of EXPECTED.md about these is a test; one run as upstream has it, one with what is corrected.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from tests.apps.telemetry.application import Application, by_mid, fixture, line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def extractor(name: str) -> str:
    return fixture(f"telemetry-extractor/{name}")


FLOWS = ("ingest", "ingest_server_events", "extract", "redact", "preprocess", "olap")
EVENTS = {
    number: fixture(f"pipeline-preprocessor/EVENT_{number}.json") for number in (1, 2, 3, 4, 5, 7, 8, 12, 13, 15, 16)
}
MIDS = {number: json.loads(text)["mid"] for number, text in EVENTS.items()}
START = "START:21e01edc45ab176abfd316bc52a8a544"
RESPONSE = "RESPONSE:4dd15933b5b8230deda7c4f67d8b61fc"
ASSESS = "ASSESS:12159f2827880221eef12a6be9560379"
QUESTIONS = [
    line({"key": "do_21299582901864857613016", "value": extractor("contentCacheData1.json")}),
    line({"key": "do_312526125187809280139355", "value": extractor("contentCacheData2.json")}),
]
Topics = dict[str, list[dict[str, Any]]]


def edited(text: str, **changes: Any) -> str:
    return line({**json.loads(text), **changes})


@pytest.fixture(scope="module")
def upstream(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Topics:
    """`compat: sunbird`, with the input of upstream's own tests."""
    app = Application(
        tmp_path_factory.mktemp("app"), compat="sunbird", numbers="double", igot="false", max_event_size=859
    )
    with_id = extractor("EVENT_WITH_MESSAGE_ID.json")
    rest = [extractor("EVENT_WITHOUT_MESSAGE_ID.json"), extractor("INVALID_BATCH_EVENT.invalid.txt")]
    app.give("telemetry.ingest", [with_id, with_id, *rest])
    app.give("lookups/contents.jsonl", QUESTIONS)
    app.give(
        "telemetry.raw",
        [*EVENTS.values(), EVENTS[1], edited(_cb_audit(), mid="cb"), "\t" + edited(EVENTS[4], mid="tab")],
    )
    valid, summary, invalid = (
        fixture(f"druid-events-validator/{name}_EVENT.json")
        for name in ("VALID_DENORM_TELEMETRY", "VALID_DENORM_SUMMARY", "INVALID_DENORM_TELEMETRY")
    )
    app.give("telemetry.denorm", [valid, valid, summary, invalid])
    app.run(spark, *FLOWS)
    return app.topics()


@pytest.fixture(scope="module")
def corrected(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Topics:
    """The default, with input that upstream loses or spoils."""
    app = Application(tmp_path_factory.mktemp("app"), max_event_size=859)
    app.give(
        "telemetry.ingestion",
        [
            extractor("EMPTY_BATCH_EVENTS.json"),
            extractor("UNDEFINED_EVENTS_IN_BATCH.json"),
            edited(extractor("MISSING_FIELDS_BATCH.json"), params={"msgid": "missing-fields", "did": "0958743690"}),
        ],
    )
    app.give(
        "telemetry.server", [fixture(f"ingest-router/RAW_{name}_EVENT.json") for name in ("LOG", "SEARCH", "ERROR")]
    )
    app.give(
        "telemetry.ingest",
        [
            extractor("EVENT_WITHOUT_MESSAGE_ID.json"),
            line({"events": {}}),
            line({"events": [7]}),
            line({"events": [json.loads(EVENTS[3])], "syncts": 1.529500243955e12}),
            *(edited(_beyond(), syncts=syncts) for syncts in (1e300, "NaN", 900_000_000_000_000_000)),
        ],
    )
    share = json.loads(EVENTS[5])
    share["edata"]["items"][0]["params"].append({"transfers": "x", "size": 12})
    app.give(
        "telemetry.raw",
        [
            *EVENTS.values(),
            EVENTS[1],
            EVENTS[4],
            "no json",
            "[]",
            "{}",
            edited(EVENTS[4], mid="actor", eid="ACTOR"),
            edited(EVENTS[4], mid="f", uid="f:5:6:user-1"),
            edited(EVENTS[1], mid="qr", object={"id": "abc", "type": "qr"}, context=_context(1, env="Course")),
            edited(EVENTS[5], mid="share", edata=share["edata"]),
            edited(_cb_audit(), mid="cb"),
            edited(_without(EVENTS[15], "syncts", "@timestamp"), mid="late"),
            "\t" + edited(EVENTS[4], mid="tab"),
            edited(_without(EVENTS[4], "@timestamp"), mid="beyond", syncts=1e300),
            edited(
                EVENTS[5],
                mid="dial-share",
                uid="f:5:6:user-1",
                object={"id": "abc", "type": "DialCode"},
                context=_context(5, rollup="no object"),
                edata={"items": [{"id": "do_1", "params": [{"size": 1e300, "transfers": "NaN"}]}]},
            ),
            edited(EVENTS[5], mid="twice").replace('"pid":', '"pid":"first","pid":'),
        ],
    )
    valid = fixture("druid-events-validator/VALID_DENORM_TELEMETRY_EVENT.json")
    app.give("telemetry.denorm", [valid, "no json", _without(valid, "mid")])
    app.run(spark, *FLOWS)
    return app.topics()


def _context(number: int, **changes: str) -> dict[str, Any]:
    return {**json.loads(EVENTS[number])["context"], **changes}


def _beyond() -> str:
    """A batch of an event that no one looks at."""
    return line({"mid": "beyond", "events": [{**json.loads(EVENTS[3]), "mid": "beyond"}]})


def _without(text: str, *names: str) -> str:
    return line({name: value for name, value in json.loads(text).items() if name not in names})


def _cb_audit() -> str:
    work_order = {"id": "w", "type": "WorkOrder", "ver": "1", "name": "n", "org": "o"}
    edata = {"state": "Draft", "props": ["WAT"], "cb_object": work_order, "cb_data": {"data": {}}}
    return edited(EVENTS[4], eid="CB_AUDIT", edata=edata)


def of(topics: Topics, topic: str, mid: str) -> dict[str, Any]:
    (found,) = [one for one in topics[f"dev.{topic}"] if one.get("mid") == mid]
    return found


def routes(topics: Topics, mid: str) -> set[str]:
    """The topics behind the preprocessor in which an event is."""
    before = ("dev.telemetry.raw", "dev.telemetry.redact", "dev.telemetry.ingest")
    return {
        topic.removeprefix("dev.") for topic, found in topics.items() for one in found
        if one.get("mid") == mid and topic not in before
    }  # fmt: skip


def is_audit(event: dict[str, Any]) -> bool:
    return event["edata"].get("type") == "telemetry_audit"


def test_extractor_totals(upstream: Topics) -> None:
    logs = [one for one in upstream["dev.druid.events.log"] if one["mid"] != MIDS[3]]
    counts = {
        "raw": len(upstream["dev.telemetry.raw"]),
        "audit": sum(is_audit(one) for one in logs),
        "log": sum(not is_audit(one) for one in logs),
        "failed": sum(one["mid"] == START for one in upstream["dev.telemetry.failed"]),
        "batch-failed": len(upstream["dev.telemetry.extractor.failed"]),
        "duplicate": len(upstream["dev.telemetry.extractor.duplicate"]),
        "assess-raw": len(upstream["dev.telemetry.assess.raw"]),
    }
    assert counts == {
        "raw": 6, "audit": 2, "log": 38, "failed": 2, "batch-failed": 1, "duplicate": 1, "assess-raw": 2
    }  # fmt: skip


def test_extractor_events(upstream: Topics) -> None:
    error = of(upstream, "telemetry.raw", "ERROR:36855629")
    assert error["flags"] == {"ex_processed": True}
    assert (error["syncts"], error["@timestamp"]) == (1529500243955, "2018-06-20T13:10:43.955Z")
    started = [one for one in upstream["dev.telemetry.failed"] if one["mid"] == START]
    assert [one["flags"] for one in started] == [{"ex_processed": False}] * 2
    assert started[0]["metadata"] == {"src": "TelemetryExtractorJob", "ex_error": "Event size is Exceeded"}


def test_extractor_numbers_are_doubles_upstream_and_stay_what_they_are_here(
    upstream: Topics, corrected: Topics
) -> None:
    assert isinstance(of(upstream, "telemetry.raw", "ERROR:36855629")["ets"], float)
    log = next(one for one in corrected["dev.druid.events.log"] if one["mid"].startswith("LOG:"))
    assert isinstance(log["ets"], int)


def test_extractor_repeated_batch(upstream: Topics) -> None:
    (batch,) = upstream["dev.telemetry.extractor.duplicate"]
    assert batch["flags"] == {"extractor_duplicate": True}
    assert len(batch["events"]) == 21


def test_extractor_redacts_answers_of_a_registration(upstream: Topics) -> None:
    kept = {one["mid"]: one["edata"] for one in upstream["dev.telemetry.assess.raw"]}
    assert kept.keys() == {RESPONSE, f"{ASSESS}:test1"}
    assert kept[RESPONSE]["values"]
    assert kept[f"{ASSESS}:test1"]["resvalues"]
    raw = upstream["dev.telemetry.raw"]
    assert sorted(len(one["edata"]["values"]) for one in raw if one["mid"] == RESPONSE) == [0, 1]
    answers = {one["mid"]: len(one["edata"]["resvalues"]) for one in raw if one["mid"].startswith(ASSESS)}
    assert answers == {f"{ASSESS}:test1": 0, f"{ASSESS}:test2": 1, f"{ASSESS}:test3": 1}


def test_extractor_unreadable_batch(upstream: Topics) -> None:
    assert upstream["dev.telemetry.extractor.failed"] == [{"text": extractor("INVALID_BATCH_EVENT.invalid.txt")}]


def test_extractor_batches_without_events_are_counted(corrected: Topics) -> None:
    audits = [one for one in corrected["dev.druid.events.log"] if is_audit(one)]
    counts = [one["edata"]["params"][0]["events_count"] for one in audits]
    assert sorted(counts) == [0, 0, 1, 1, 1, 1, 20, 25]
    assert {one["mid"] for one in audits} >= {"56c0c430-748b-11e8-ae77-cd19397ca6b0", "5734970"}
    assert len(corrected["dev.telemetry.extractor.failed"]) == 2


def test_extractor_batch_without_syncts_has_the_time_of_its_batch(corrected: Topics) -> None:
    started = [one for one in corrected["dev.telemetry.failed"] if one.get("mid") == START]
    times = sorted(one["syncts"] for one in started)
    assert times[0] == 1529500243955
    assert times[1] > 1_790_000_000_000
    beyond = [one for one in corrected["dev.druid.events.log"] if one["mid"] == "beyond" and not is_audit(one)]
    assert [one["syncts"] > 1_790_000_000_000 for one in beyond] == [True] * 3


def test_ingest_router(corrected: Topics) -> None:
    assert len(corrected["dev.telemetry.ingest"]) == 3
    assert {one["mid"] for one in corrected["dev.telemetry.ingest"]} == {
        "56c0c430-748b-11e8-ae77-cd19397ca6b0",
        "5734970",
    }
    servers = [json.loads(fixture(f"ingest-router/RAW_{name}_EVENT.json")) for name in ("LOG", "SEARCH", "ERROR")]
    raw = corrected["dev.telemetry.raw"]
    assert all(one in raw for one in servers)


@pytest.mark.parametrize("mode", ["upstream", "corrected"])
@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (1, {"telemetry.unique", "telemetry.unique.secondary", "telemetry.duplicate"}),
        (2, {"telemetry.error"}),
        (3, {"druid.events.log"}),
        (7, {"telemetry.failed"}),
        (12, {"telemetry.unique", "telemetry.unique.primary"}),
        (16, {"telemetry.failed"}),
    ],
)
def test_preprocessor_routes(request: pytest.FixtureRequest, mode: str, number: int, expected: set[str]) -> None:
    assert routes(request.getfixturevalue(mode), MIDS[number]) == expected


def test_preprocessor_event_1(upstream: Topics) -> None:
    for topic in ("telemetry.unique", "telemetry.unique.secondary"):
        event = of(upstream, topic, "mid4")
        assert event["context"]["channel"] == "b00bc992ef25f1a9a8d63291e20efc8d"
        assert event["flags"] == {"dd_processed": True, "pp_validation_processed": True}
        assert event["type"] == "events"


def test_preprocessor_event_2_was_not_looked_for(upstream: Topics, corrected: Topics) -> None:
    assert of(upstream, "telemetry.error", MIDS[2])["flags"]["pp_duplicate_skipped"] is True
    assert "pp_duplicate_skipped" not in of(corrected, "telemetry.error", MIDS[2])["flags"]


def test_preprocessor_event_4(upstream: Topics, corrected: Topics) -> None:
    places = {"telemetry.audit", "telemetry.unique", "telemetry.unique.primary"}
    assert routes(upstream, MIDS[4]) == places
    # upstream looks for repeats of a few producers only
    assert routes(corrected, MIDS[4]) == {*places, "telemetry.duplicate"}


def test_preprocessor_event_5_share(upstream: Topics) -> None:
    shares = [one for one in upstream["dev.telemetry.unique"] if one["eid"] == "SHARE"]
    assert [one["flags"]["pp_share_event_processed"] for one in shares] == [True]
    assert of(upstream, "telemetry.unique.primary", MIDS[5])["eid"] == "SHARE"
    for topic in ("dev.telemetry.unique", "dev.telemetry.unique.secondary"):
        items = {one["object"]["id"]: one for one in upstream[topic] if one["eid"] == "SHARE_ITEM"}
        assert {name: one["object"]["type"] for name, one in items.items()} == {
            "do_312785709424099328114191": "CONTENT",
            "do_31277435209002188818711": "CONTENT",
            "do_31278794857559654411554": "TextBook",
        }
        first = items["do_312785709424099328114191"]
        assert first["edata"] == {"dir": "In", "type": "download", "size": 21084308}
        assert items["do_31277435209002188818711"]["edata"] == {"dir": "In", "type": "import", "size": 0}
        assert items["do_31278794857559654411554"]["edata"] == {"dir": "In", "type": "File", "size": 0}
        assert first["object"]["rollup"] == {"l1": "do_312528116260749312248818"}
        assert first["context"]["pdata"] == {"id": "dev.sunbird.app", "pid": "sunbird.app", "ver": "2.3.162"}
        assert re.fullmatch(re.escape(MIDS[5]) + "-[0-9a-f]{32}", first["mid"])
        assert len({one["mid"] for one in items.values()}) == 3


def test_share_items_have_the_same_ids_whenever_they_are_made(upstream: Topics, corrected: Topics) -> None:
    made = [{one["mid"] for one in topics["dev.telemetry.unique"] if one.get("mid", "").startswith(MIDS[5] + "-")}
            for topics in (upstream, corrected)]  # fmt: skip
    assert made[0] == made[1]
    items = [one for one in corrected["dev.telemetry.unique"] if one["mid"].startswith("share-")]
    assert sorted((one["edata"]["type"], one["edata"]["size"]) for one in items) == [
        ("File", 0), ("download", 12), ("download", 21084308), ("import", 0)
    ]  # fmt: skip


def test_preprocessor_event_7_every_error_is_told(corrected: Topics) -> None:
    event = of(corrected, "telemetry.failed", MIDS[7])
    assert event["flags"]["pp_validation_processed"] is False
    assert event["metadata"]["src"] == "PipelinePreprocessor"
    errors = event["metadata"]["errors"]
    assert {one["keyword"] for one in errors} >= {"required"}
    assert {one["path"] for one in errors} >= {"/ets"}
    assert all(one["message"] for one in errors)


def test_preprocessor_event_8_has_no_schema(upstream: Topics, corrected: Topics) -> None:
    for topics in (upstream, corrected):
        (event,) = [one for one in topics["dev.telemetry.failed"] if one.get("eid") == "NO_EID"]
        assert event["metadata"]["validation_error"] == "Schema not found: eid looks incorrect, sending to failed"
        assert event["metadata"]["src"] == "PipelinePreprocessor"


def test_preprocessor_event_11_is_a_repeat(upstream: Topics) -> None:
    assert of(upstream, "telemetry.duplicate", "mid4")["flags"]["pp_duplicate"] is True


def test_preprocessor_events_13_and_15(upstream: Topics) -> None:
    assert MIDS[13] == MIDS[15]
    assert len([one for one in upstream["dev.telemetry.failed"] if one["mid"] == MIDS[13]]) == 1
    assert routes(upstream, MIDS[15]) == {"telemetry.failed", "telemetry.unique", "telemetry.unique.primary"}


def test_preprocessor_corrections(corrected: Topics) -> None:
    assert of(corrected, "telemetry.unique", "f")["actor"]["id"] == "user-1"
    learnt = of(corrected, "telemetry.unique", "qr")
    assert (learnt["object"]["id"], learnt["context"]["hub"]) == ("ABC", "learn")
    late = of(corrected, "telemetry.unique", "late")
    assert late["syncts"] > 1_790_000_000_000
    assert late["@timestamp"].endswith("Z")


def test_share_items_have_what_was_corrected_in_their_share(corrected: Topics) -> None:
    (item,) = [one for one in corrected["dev.telemetry.unique"] if one["mid"].startswith("dial-share-")]
    assert item["actor"] == {"id": "user-1", "type": "User"}
    assert item["object"] == {"id": "do_1", "rollup": {"l1": "ABC"}}
    assert item["edata"] == {"type": "download", "size": 0}
    assert item["context"]["rollup"] == "no object"
    assert len([one for one in corrected["dev.telemetry.unique"] if one["mid"].startswith("twice-")]) == 3


def test_preprocessor_white_space_before_an_event(upstream: Topics, corrected: Topics) -> None:
    for topics in (upstream, corrected):
        assert routes(topics, "tab") == {"telemetry.audit", "telemetry.unique", "telemetry.unique.primary"}


def test_preprocessor_a_time_beyond_all_calendars_is_none(corrected: Topics) -> None:
    event = of(corrected, "telemetry.unique", "beyond")
    assert event["@timestamp"][:2] == "20"


def test_preprocessor_cb_audit(upstream: Topics, corrected: Topics) -> None:
    assert routes(corrected, "cb") == {"telemetry.cb.audit", "telemetry.unique.primary"}
    # without igot it is an event as any other
    assert routes(upstream, "cb") == {"telemetry.unique", "telemetry.unique.primary"}
    assert "hub" not in of(upstream, "telemetry.unique", "mid4")["context"]


def test_what_is_no_event_is_kept_with_what_is_wrong(corrected: Topics) -> None:
    failed = corrected["dev.telemetry.failed"]
    whole = {
        one["event"]: one["metadata"]["errors"][0]["keyword"] for one in failed if "event" in one and "flags" in one
    }
    assert whole["no json"] == "json"
    assert "[]" in whole
    assert of(corrected, "telemetry.failed", "actor")["metadata"]["errors"][0]["keyword"] == "schema"


def test_olap(upstream: Topics, corrected: Topics) -> None:
    mid = "3318a611-50fa-4ae9-9167-7b4390a62b9f"
    assert of(upstream, "druid.events.telemetry", mid)["flags"]["dv_processed"] is True
    assert of(upstream, "telemetry.duplicate", mid)["flags"]["dv_duplicate"] is True
    (summary,) = upstream["dev.druid.events.summary"]
    assert (summary["eid"], summary["flags"]["dv_processed"]) == ("ME_WORKFLOW_SUMMARY", True)
    failed = of(upstream, "telemetry.failed", "a46d82af-eb2f-434e-8e04-5f31fcbdc5d6")
    assert (failed["flags"]["dv_processed"], failed["flags"]["dv_validation_failed"]) == (False, True)
    assert failed["metadata"]["src"] == "DruidValidator"
    assert failed["metadata"]["errors"][0]["path"] == "/contentdata/framework"
    told = [one for one in corrected["dev.telemetry.failed"] if one.get("metadata", {}).get("src") == "DruidValidator"]
    assert [one["event"] for one in told] == ["no json"]
    # one without an id is no repeat
    assert sorted("mid" in one for one in corrected["dev.druid.events.telemetry"]) == [False, True]


def test_every_event_is_somewhere_once(corrected: Topics) -> None:
    """In = routed + duplicate + failed, for the preprocessor, by what was given to it."""
    outcomes = ("telemetry.unique.primary", "telemetry.unique.secondary", "telemetry.error", "telemetry.duplicate")
    routed = [one for name in outcomes for one in corrected[f"dev.{name}"] if one["eid"] != "SHARE_ITEM"]
    routed = [one for one in routed if "dv_duplicate" not in one["flags"]]
    logs = [one for one in corrected["dev.druid.events.log"] if "pp_validation_processed" in one.get("flags", {})]
    failed = [one for one in corrected["dev.telemetry.failed"] if "pp_validation_processed" in one.get("flags", {})]
    given = len(EVENTS) + 15 + len(corrected["dev.telemetry.raw"])
    assert len(routed) + len(logs) + len(failed) == given
    assert by_mid(one for one in corrected["dev.telemetry.unique"])
