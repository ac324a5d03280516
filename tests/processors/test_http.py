from __future__ import annotations

import json
import threading
import time
from typing import Any

import pyarrow as pa
import pytest
from benchmarks.answers import Answers
from pydantic import ValidationError
from tests.processors.conftest import StepDesk

from headrace.core.errors import Exit, ProjectError
from headrace.processors.http import Http

COLUMNS = {
    "name": "$.user.name",
    "score": {"path": "$.user.score", "type": "double"},
    "second": {"path": "$.user.tags[-1]"},
    "tags": {"path": "$.user.tags", "type": "array<string>"},
    "none": "$.user.nothing.here",
}


def step(answers: Answers, **options: Any) -> Http:
    given = {"url": f"{answers.url}/users/{{id}}", "columns": COLUMNS, "backoff": "1ms", **options}
    return Http.model_validate(given)


def test_columns_are_added_in_the_order_of_the_rows(answers: Answers, desk: StepDesk) -> None:
    rows = desk.run(step(answers), {"id": ["b", "a", None, "b"], "n": [1, 2, 3, 4]})
    assert rows[0] == {
        "id": "b", "n": 1, "name": "name of b", "score": 1.5, "second": "b", "tags": ["a", "b"], "none": None,
    }  # fmt: skip
    assert [(row["n"], row["name"]) for row in rows] == [
        (1, "name of b"),
        (2, "name of a"),
        (3, None),
        (4, "name of b"),
    ]
    assert answers.stats()["calls"] == 2, "each key is asked about once, and null is none"
    assert desk.counts["calls"] == desk.counts["successes"] == 2
    assert sum(number for name, number in desk.counts.items() if name.startswith("latency:")) == 2


def test_values_cannot_leave_their_place(answers: Answers, desk: StepDesk) -> None:
    odd = 'a/b?c=d&e #%"\u00e9{x}\r\n'
    asked = step(
        answers,
        url=f"{answers.url}/users/{{id}}?q={{id}}&fixed=a%20b",
        method="POST",
        headers={"X-Key": "<{plain}>", "X-Secret": "a{{b}}"},
        body='{"id": {id}, "text": "row {id} of {n}", "n": {n}, "list": {list}}',
        columns={"heard": "$.heard"},
    )
    batch = pa.RecordBatch.from_pydict({"id": [odd], "plain": ["x y"], "n": [7], "list": [["a", '"']]})
    [row] = desk.run(asked, batch)
    heard = json.loads(row["heard"])
    assert heard["path"] == "/users/a%2Fb%3Fc%3Dd%26e%20%23%25%22%C3%A9%7Bx%7D%0D%0A"
    assert heard["query"] == {"q": [odd], "fixed": ["a b"]}
    assert (heard["headers"]["x-key"], heard["headers"]["x-secret"]) == ("<x y>", "a{b}")
    assert json.loads(heard["body"]) == {"id": odd, "text": f"row {odd} of 7", "n": 7, "list": ["a", '"']}
    assert heard["headers"]["content-type"] == "application/json"


@pytest.mark.parametrize("value", ["..", ".", ""])
def test_a_value_cannot_make_another_path(answers: Answers, desk: StepDesk, value: str) -> None:
    assert desk.run(step(answers), {"id": [value, "a"]})[0]["name"] == "name of a"
    assert desk.reasons == ["bad-value"]


def test_a_value_cannot_make_another_header(answers: Answers, desk: StepDesk) -> None:
    assert desk.run(step(answers, headers={"X-Id": "{id}"}), {"id": ["a\r\nX-Admin: yes"]}) == []
    assert desk.reasons == ["bad-value"]


@pytest.mark.parametrize(
    ("key", "options", "reason", "counted"),
    [
        ("missing-1", {}, "http-status-404", "failures_404"),
        ("status-403-1", {}, "http-status-403", "failures_4xx"),
        ("status-500-1", {}, "http-status-500", "failures_5xx"),
        ("hop-1", {}, "http-status-302", "failures_other"),
        ("away-1", {"redirects": True}, "redirected-elsewhere", "failures_other"),
        ("text-1", {}, "bad-answer", "failures_other"),
        ("big-1", {}, "response-too-large", "failures_other"),
        ("slow-1", {"timeout": "50ms", "retries": 0}, "timeout", "timeouts"),
        ("a", {"columns": {"m": {"path": "$.user.name", "type": "bigint"}}}, "bad-answer", "successes"),
    ],
)
def test_a_refused_row_is_kept_with_its_reason(
    answers: Answers, desk: StepDesk, key: str, options: dict[str, Any], reason: str, counted: str
) -> None:
    rows = desk.run(step(answers, **options), {"id": [key, None, key], "n": [1, 2, 3]})
    assert [row["n"] for row in rows] == [2]
    assert [(row, why) for row, why, _ in desk.kept.letters] == [
        ({"id": key, "n": 1}, reason),
        ({"id": key, "n": 3}, reason),
    ]
    assert desk.counts[counted] >= 1


def test_what_is_excluded_gives_nulls(answers: Answers, desk: StepDesk) -> None:
    excluding = step(answers, exclude="400-401,404-499", redirects=True)
    rows = desk.run(excluding, {"id": ["missing-1", "status-420-1", "status-401-1", "hop-1", "status-403-1"]})
    assert [row["name"] for row in rows] == [None, None, None, "name of 1"]
    assert desk.reasons == ["http-status-403"]


def test_what_is_accepted_is_an_answer_too(answers: Answers, desk: StepDesk) -> None:
    accepting = step(answers, accept="404,420", columns={"said": "$.error"})
    rows = desk.run(accepting, {"id": ["missing-1", "status-420-1", "status-403-1", "a"]})
    assert [row["said"] for row in rows] == ["told to say 404", "told to say 420", None]
    assert desk.reasons == ["http-status-403"]
    with pytest.raises(ValidationError, match="404 is in `exclude` and in `accept`"):
        step(answers, accept="404", exclude="400-499")


def test_on_error_null_and_fail(answers: Answers, desk: StepDesk) -> None:
    rows = desk.run(step(answers, on_error="null"), {"id": ["missing-1", "a"]})
    assert [row["name"] for row in rows] == [None, "name of a"]
    with pytest.raises(ProjectError) as caught:
        desk.run(step(answers, on_error="fail"), {"id": ["missing-1", "a"]})
    assert caught.value.code == "enrichment-failed"
    assert "http-status-404" in caught.value.message


def test_who_is_not_let_in_loses_no_row(answers: Answers, desk: StepDesk) -> None:
    with pytest.raises(ProjectError) as caught:
        desk.run(step(answers), {"id": ["status-401-1"]})
    assert caught.value.code == "service-authentication"


def test_what_may_pass_is_tried_again(answers: Answers, desk: StepDesk) -> None:
    answers.control(flaky=300, status=503)
    rows = desk.run(step(answers), {"id": [str(n) for n in range(200)]})
    assert [row["name"] for row in rows] == [f"name of {n}" for n in range(200)]
    assert desk.counts["retries"] == desk.counts["failures_5xx"] > 20


def test_no_more_than_the_capacity_at_once(answers: Answers, desk: StepDesk) -> None:
    answers.control(delay=0.3)  # long enough for all five to be asked, however slowly
    desk.run(step(answers, capacity=5), {"id": [str(n) for n in range(10)]})
    assert answers.stats()["most"] == 5


def test_answers_are_kept_for_a_while(answers: Answers, desk: StepDesk) -> None:
    caching = step(answers, cache={"ttl": "1h", "size": 2}, exclude="404")
    desk.run(caching, {"id": ["a", "missing-b", "a"]})
    assert [row["name"] for row in desk.run(caching, {"id": ["missing-b", "a"]})] == [None, "name of a"]
    assert answers.stats()["calls"] == 2
    assert desk.counts["cache_hits"] == 2
    desk.run(caching, {"id": ["c"]})
    desk.run(caching, {"id": ["missing-b"]})
    assert answers.stats()["calls"] == 4, "the least used one was forgotten"


def test_a_service_that_is_away_is_waited_for(answers: Answers, desk: StepDesk) -> None:
    waiting = step(answers, retries=1)
    answers.stop()
    with pytest.raises(ProjectError) as caught:
        waiting.check(desk.context)
    assert (caught.value.code, caught.value.exit_code) == ("service-away", Exit.TRANSIENT)
    back = threading.Timer(0.5, answers.start_again)
    back.start()
    rows = desk.run(waiting, {"id": [str(n) for n in range(100)]})
    back.join()
    assert [row["name"] for row in rows] == [f"name of {n}" for n in range(100)]
    assert desk.kept.letters == []
    waiting.check(desk.context)


def test_a_service_that_stays_away_fails_the_batch(answers: Answers, desk: StepDesk) -> None:
    answers.control(all_failing=True, status=503)
    began = time.monotonic()
    with pytest.raises(ProjectError) as caught:
        desk.run(step(answers, retries=0, give_up="200ms", on_error="null"), {"id": ["a"]})
    assert caught.value.code == "service-away"
    assert 0.2 <= time.monotonic() - began < 60


def test_basic_and_bearer_login(answers: Answers, desk: StepDesk) -> None:
    heard = {"heard": "$.heard.headers.authorization"}
    [row] = desk.run(step(answers, token="s3cret", columns=heard), {"id": ["a"]})
    assert row["heard"] == "Bearer s3cret"
    more = {"url": f"{answers.url}/users/{{id}}?key=s3cret", "headers": {"X-Key": "s3cret"}}
    secret = step(answers, username="me", password="s3cret", columns=heard, **more)
    [row] = desk.run(secret, {"id": ["a"]})
    assert row["heard"].startswith("Basic ")
    work = secret.work(pa.schema([("id", pa.string())]), desk.at)
    assert "s3cret" not in repr(secret) + secret.label + repr(work)


def test_columns_that_are_used(answers: Answers) -> None:
    asked = step(answers, headers={"X-A": "{place.area}"})
    assert asked.uses(frozenset({"name", "n"})) == {"n", "id", "place", "place.area"}
    assert asked.uses(None) is None
    place = pa.struct([("area", pa.string())])
    made = asked.output(pa.schema([("id", pa.int64()), ("place", place), ("none", pa.int64())]))
    assert made.names == ["id", "place", "none", "name", "score", "second", "tags"]
    for given in ({"ids": pa.int64(), "place": place}, {"id": pa.int64(), "place": pa.struct([("b", pa.string())])}):
        with pytest.raises(ProjectError) as caught:
            asked.output(pa.schema(given))
        assert caught.value.code == "unknown-column"
    with pytest.raises(ProjectError) as caught:
        asked.output(pa.schema({"id": pa.binary(), "place": place}))
    assert caught.value.code == "step-column-type"


@pytest.mark.parametrize(
    "options",
    [
        {"url": "ftp://a/b"},
        {"url": "http://{host}/b"},
        {"url": "http://me:secret@a/b"},
        {"url": "http://a/{b"},
        {"url": "http://a/b#c"},
        {"headers": {"X": "{a"}},
        {"headers": {"X y": "a"}},
        {"headers": {"X": "a\r\nb"}},
        {"body": "{}"},
        {"method": "POST", "body": '{"a": {b}'},
        {"exclude": "4xx"},
        {"columns": {"a": "b"}},
        {"columns": {"a": {"path": "$.a[?", "type": "string"}}},
        {"columns": {"a": {"path": "$.a", "type": "strin"}}},
        {"columns": {}},
        {"username": "a"},
        {"token": "a", "username": "b", "password": "c"},
        {"capacity": 0},
    ],
)
def test_options_that_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Http.model_validate({"url": "http://a/{b}", "columns": {"a": "$.a"}, **options})
