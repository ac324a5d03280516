from __future__ import annotations

import json
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema_rs
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.context import Context
from headrace.core.schema import from_ddl
from headrace.processors._steps.project_class import find_class
from headrace.processors.sessions.run import METHODS, Rules, SessionRun

APP = Path(__file__).parents[3] / "apps/telemetry"
FIXTURES = Path(__file__).parent / "fixtures/workflow-summary"
MINUTE = 60_000
CONTEXT = Context(APP, "")
KNOWN = find_class("processors/workflow.py:Workflow", CONTEXT, METHODS)

Event = dict[str, Any]
Groups = dict[tuple[Any, ...], list[tuple[int, dict[str, Any]]]]


def run_of(compat: str) -> SessionRun:
    gap, keep = (24 * 60, 0) if compat == "sunbird" else (30, 12 * 60)
    rules = Rules(gap * MINUTE * 1000, keep * MINUTE * 1000, order=("mid",))
    return SessionRun(KNOWN, {"compat": compat}, rules, from_ddl(KNOWN.columns or ""))


def timed(event: Event, mid: str) -> tuple[int, dict[str, Any]]:
    ets = int(event["ets"])
    return ets * 1000, {"value": json.dumps(event), "mid": mid, "ets": ets}


def groups(events: list[Event], by_user: bool) -> Groups:
    made: Groups = defaultdict(list)
    for event in events:
        if "ets" not in event or event["eid"] in ("LOG", "AUDIT", "SEARCH"):
            continue
        context = event["context"]
        user = event["actor"]["id"] if by_user else ""
        key = (context.get("did", ""), context["channel"], context["pdata"]["id"], user)
        made[key].append(timed(event, event["mid"]))
    return made


def summaries(events: list[Event], compat: str) -> list[Event]:
    run, made = run_of(compat), []
    for rows in groups(events, compat != "sunbird").values():
        made += run.advance(None, run.rules.sorted(rows), None)[1]
    return told(made, compat)


def told(made: list[Event], compat: str) -> list[Event]:
    facts = pa.RecordBatch.from_pylist(made, pa.schema([("facts", pa.string())]))
    events = find_class("processors/summary.py:Summary", CONTEXT).make({"compat": compat}).process(facts)
    assert events.column("mid").to_pylist() == [json.loads(one)["mid"] for one in events.column("value").to_pylist()]
    return [json.loads(one) for one in events.column("value").to_pylist()]


def fixture(number: int) -> list[Event]:
    lines = (FIXTURES / f"test-data{number}.log").read_text().splitlines()
    return [json.loads(line) for line in lines]


def eks(summary: Event) -> Event:
    found: Event = summary["edata"]["eks"]
    return found


def counts(summary: Event) -> dict[str, int]:
    return {one["id"]: one["count"] for one in eks(summary)["events_summary"]}


def with_mid(found: list[Event], mid: str) -> Event:
    return next(one for one in found if one["mid"] == mid)


@pytest.mark.parametrize(
    ("number", "kinds"),
    [
        (1, {"app": 3, "textbookunit": 2, "resource": 2, "content": 1, "qr": 1}),
        (2, {"app": 3, "session": 1, "player": 1, "editor": 3}),
        (3, {"app": 2, "session": 1}),
    ],
)
@pytest.mark.parametrize("compat", ["sunbird", "none"])
def test_there_are_as_many_summaries_as_upstream_says(number: int, kinds: dict[str, int], compat: str) -> None:
    assert Counter(one["dimensions"]["type"] for one in summaries(fixture(number), compat)) == kinds


def test_an_app_that_was_only_looked_at() -> None:
    one = with_mid(summaries(fixture(1), "sunbird"), "B151E935C1F3E9D7D30A4A6EB96E2AE2")
    assert one["dimensions"]["did"] == "a49c706d0402d6db3bb7cb3105cc9e7cf9b2ed7e"
    assert one["dimensions"]["sid"] == "8f32dbc4-c0d0-4630-9ff6-8c3bce3d15bb"
    assert one["dimensions"]["channel"] == "01235953109336064029450"
    said = eks(one)
    assert (said["start_time"], said["end_time"]) == (1534595611976, 1534595617324)
    assert (said["time_diff"], said["time_spent"]) == (5.35, 5.35)
    assert (said["interact_events_count"], said["interact_events_per_min"]) == (0, 0)
    assert [len(said[name]) for name in ("page_summary", "env_summary", "events_summary", "item_responses")] == [
        1, 1, 3, 0,
    ]  # fmt: skip


def test_what_was_played_is_in_the_summary_of_the_player() -> None:
    [one] = [one for one in summaries(fixture(2), "sunbird") if one["dimensions"]["type"] == "player"]
    assert one["object"]["id"] == "do_1122852550749306881159"
    assert (one["object"]["ver"], one["object"]["type"]) == ("1.0", "Content")
    assert one["object"]["rollup"]["l1"] == "do_3124020553502310402803"


def test_a_session_within_an_app() -> None:
    found = summaries(fixture(3), "sunbird")
    one = with_mid(found, "47377F637676DDE217BAFA1DF95E6FF1")
    assert one["context"] == {
        "pdata": {"id": "AnalyticsDataPipeline", "ver": "1.0", "model": "WorkflowSummarizer"},
        "granularity": "SESSION",
        "date_range": {"from": 1515402354310, "to": 1515402366478},
    } | {name: one["context"][name] for name in ("cdata", "rollup") if name in one["context"]}
    assert one["dimensions"]["sid"] == "830811c2-3c02-4c45-8755-3f15064a88a2"
    said = eks(one)
    assert (said["time_diff"], said["time_spent"], said["interact_events_per_min"]) == (12.17, 12.17, 1.0)
    assert counts(one) == {"START": 2, "INTERACT": 1}
    [inner] = [one for one in found if one["dimensions"]["type"] == "session"]
    assert (eks(inner)["start_time"], eks(inner)["time_spent"]) == (1515402354782, 11.7)
    assert counts(inner) == {"START": 1, "INTERACT": 1}


def test_summaries_are_valid() -> None:
    folder = APP / "schemas/summary"

    def retrieve(uri: str) -> Any:
        return json.loads((folder / uri.rpartition("/")[2]).read_text())

    rules = json.loads((folder / "me_workflow_summary.json").read_text())
    rules.pop("id")
    validator = jsonschema_rs.Draft4Validator(rules, retriever=retrieve, validate_formats=False)
    for number in (1, 2, 3):
        for one in summaries(fixture(number), "none"):
            validator.validate({**one, "ets": 1})


def event(eid: str, second: float, user: str = "u1", **edata: Any) -> Event:
    return {
        "eid": eid,
        "ets": 1_600_000_000_000 + round(second * 1000),
        "mid": f"{eid}:{second}:{user}",
        "ver": "3.0",
        "actor": {"id": user, "type": "User"},
        "context": {"channel": "c", "did": "d", "pdata": {"id": "app"}, "sid": "s", "env": edata.pop("env", "home")},
        "edata": edata,
        "syncts": 1_600_000_000_000,
    }


def page(second: float, pageid: str, env: str = "home") -> Event:
    return event("IMPRESSION", second, pageid=pageid, type="view", env=env)


VISITS = [
    event("START", 0, type="app"), page(1, "library"), page(11, "detail"), page(16, "library"),
    event("INTERACT", 20, type="TOUCH"), page(1000, "player", env="player"), event("INTERACT", 1005, type="other"),
    event("END", 1006, type="app"),
]  # fmt: skip


def pages(summary: Event) -> dict[str, tuple[float, int]]:
    return {one["id"]: (one["time_spent"], one["visit_count"]) for one in eks(summary)["page_summary"]}


def test_pages_are_counted_once_with_all_visits_and_without_idle_time() -> None:
    [one] = summaries(VISITS, "none")
    assert pages(one) == {"library": (14.0, 2), "detail": (5.0, 1), "player": (6.0, 1)}
    assert eks(one)["env_summary"] == [
        {"env": "home", "time_spent": 19.0, "count": 3},
        {"env": "player", "time_spent": 6.0, "count": 1},
    ]
    assert (eks(one)["time_spent"], eks(one)["time_diff"], eks(one)["interact_events_count"]) == (26.0, 1006.0, 1)


def test_upstream_counts_pages_in_its_own_way() -> None:
    [one] = summaries(VISITS, "sunbird")
    assert pages(one) == {"library": (1964.0, 1), "detail": (10.0, 1), "player": (6.0, 1)}
    assert eks(one)["env_summary"][0] == {"env": "home", "time_spent": 1974.0, "count": 1}


def test_the_first_event_of_a_workflow_counts_fully() -> None:
    answer = event("ASSESS", 5, item={"id": "q", "maxscore": 1}, resvalues=[{"a": 1}, {"b": "x"}], score=1, duration=2)
    [one] = summaries([page(0, "p"), answer], "none")
    assert pages(one) == {"p": (5.0, 1)}
    assert eks(one)["item_responses"][0]["res"] == ["a:1", "b:x"]
    started = [event("START", 0, type="player", mode="play"), event("INTERACT", 2, type="TOUCH")]
    assert [counts(one) for one in summaries(started, "none")] == [{"START": 1, "INTERACT": 1}] * 2
    assert [counts(one) for one in summaries(started, "sunbird")][1] == {"START": 2, "INTERACT": 1}


def test_users_of_one_device_are_told_apart() -> None:
    shared = [event("INTERACT", second, user, type="TOUCH") for second in range(4) for user in ("u1", "u2")]
    assert sorted(one["uid"] for one in summaries(shared, "none")) == ["u1", "u2"]
    assert [one["uid"] for one in summaries(shared, "sunbird")] == ["u1"]


def test_after_a_pause_the_same_workflows_go_on() -> None:
    long = [
        event("START", 0, type="player", mode="play"), event("INTERACT", 10, type="TOUCH"),
        event("INTERACT", 4000, type="TOUCH"), event("END", 4010, type="player", mode="play"),
    ]  # fmt: skip
    expected = [("player", 10.0), ("app", 10.0), ("player", 10.0), ("app", 10.0)]
    for compat in ("sunbird", "none"):
        found = [(one["dimensions"]["type"], eks(one)["time_spent"]) for one in summaries(long, compat)]
        assert found == expected


KINDS = st.sampled_from(
    [("START", "app", ""), ("START", "session", ""), ("START", "player", "play"), ("START", "player", "edit"),
     ("END", "app", ""), ("END", "session", ""), ("END", "player", "play"), ("END", "player", "edit"),
     ("INTERACT", "touch", ""), ("INTERACT", "other", ""), ("IMPRESSION", "view", ""), ("ERROR", "x", "")]
)  # fmt: skip
STEPS = st.lists(st.tuples(KINDS, st.sampled_from([0, 1, 7, 599, 700, 1800, 2000, 50_000])), max_size=40)


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
PLACES = st.sampled_from(
    [(), ("eid",), ("edata",), ("edata", "type"), ("edata", "mode"), ("edata", "pageid"), ("edata", "resvalues"),
     ("edata", "item"), ("context",), ("context", "env"), ("context", "sid"), ("context", "pdata"), ("actor", "id"),
     ("object",), ("object", "id"), ("tags",), ("ver",), ("syncts",), ("@timestamp",)]
)  # fmt: skip


def spoilt(event: Event, place: tuple[str, ...], value: Any) -> Event:
    """An event with something odd in one place."""
    whole: Event = json.loads(json.dumps(event))
    inside = whole
    for name in place[:-1]:
        inside = inside.setdefault(name, {})
    if place:
        inside[place[-1]] = value
    return whole


@settings(max_examples=60, deadline=None)
@given(
    steps=STEPS,
    oddities=st.lists(st.tuples(PLACES, ODD), min_size=1, max_size=20),
    cuts=st.lists(st.integers(0, 40), max_size=5),
    compat=st.sampled_from(["sunbird", "none"]),
)
def test_what_is_remembered_between_batches_changes_nothing(
    steps: Any, oddities: Any, cuts: list[int], compat: str
) -> None:
    second, rows = 0, []
    for number, ((eid, kind, mode), wait) in enumerate(steps):
        second += wait
        one = event(eid, second, type=kind, pageid=f"p{number % 3}", **({"mode": mode} if mode else {}))
        rows.append(timed(spoilt(one, *oddities[number % len(oddities)]), str(number)))
    run = run_of(compat)
    at_once = run.advance(None, rows, None)[1]
    span, in_parts = None, []
    bounds = sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})
    for start, end in pairwise(bounds):
        # time passes up to the next row: a session may be finished before it comes
        until = rows[end][0] if end < len(rows) else rows[end - 1][0] if rows else 0
        span, made = run.advance(span, rows[start:end], until)
        in_parts += made
    in_parts += run.advance(span, [], None)[1]
    assert in_parts == at_once
    assert all(one["eid"] == "ME_WORKFLOW_SUMMARY" for one in told(at_once, compat))


@pytest.mark.parametrize("compat", ["sunbird", "none"])
def test_no_event_stops_the_others(compat: str) -> None:
    deep, beyond = "[" * 900 + "]" * 900, "1e400"
    given = [event("START", second, type=f"t{second}") for second in range(2000)]
    texts = {"edata": deep, "object": deep, "actor": beyond, "context": '{"pdata": {"id": ' + deep + '}, "env": [1]}'}
    rows = [timed(one, one["mid"]) for one in given]
    for number, (name, text) in enumerate(texts.items()):
        for eid in ("IMPRESSION", "START", "ASSESS"):
            time, row = timed(event(eid, 2001 + number, type="x"), f"{eid}{number}")
            rows.append((time, {**row, "value": row["value"][:-1] + f', "{name}": {text}' + "}"}))
    rows += [(rows[-1][0], {**rows[-1][1], "value": text}) for text in ("[]", "no JSON")]
    run = run_of(compat)
    first, made = run.advance(None, rows[:1000], rows[1000][0])
    last = run.advance(first, rows[1000:], None)[1]
    assert run.advance(None, rows, None)[1] == [*made, *last]
    found = told([*made, *last], compat)
    assert len({one["dimensions"]["type"] for one in found}) == 100
    whole = next(one for one in found if one["dimensions"]["type"] == "app")
    assert sum(counts(whole).values()) == len(rows) + (compat == "sunbird")
