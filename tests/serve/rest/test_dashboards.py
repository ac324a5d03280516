"""Dashboards: the page holds no data, and what is on one is told to those who may see the rows."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import shutil
import subprocess
from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.serve.kit import Served, api_key

import headrace.serve
from headrace.project.dashboards import DashboardSpec
from headrace.serve.rest.app import create_app

BOARDS: dict[str, Any] = {
    "cinema": {
        "title": "Cinema",
        "refresh": "5s",
        "charts": [
            {"title": "Films", "type": "bar", "endpoint": "films", "x": "year", "y": "rating", "limit": 5},
            {
                "title": "Of the US",
                "type": "number",
                "endpoint": "films",
                "y": "id",
                "filter": {"$or": [{"region": "US"}, {"year": 1}]},
            },
        ],
    },
    "people": {"title": "People", "charts": [{"title": "Visits", "type": "table", "endpoint": "visits"}]},
}
KEYS = [
    api_key("all", "k-all"),
    api_key("narrow", "k-narrow", endpoints={"films": {"fields": ["id", "year", "rating"]}}),
    api_key("live", "k-live", scopes=["events"]),
]
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


def ask(shelf: Served, path: str, key: str | None = None, accept: str = "*/*", **serve: Any) -> httpx.Response:
    boards = {name: DashboardSpec.model_validate(one) for name, one in BOARDS.items()}
    app = create_app(replace(shelf.settings(**serve), dashboards=boards))

    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:9480") as client:
            headers = {"accept": accept, **({"x-api-key": key} if key else {})}
            return await client.get(path, headers=headers)

    return asyncio.run(asked())


def guarded(shelf: Served, path: str, key: str | None = None) -> httpx.Response:
    return ask(shelf, path, key, auth={"keys": KEYS})


@pytest.mark.parametrize("path", ["/dashboards", "/dashboards/cinema"])
def test_browsers_get_a_page_that_runs_nothing_but_its_own_scripts(path: str, shelf: Served) -> None:
    page = ask(shelf, path, accept=BROWSER, auth={"keys": KEYS})
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = dict(part.strip().split(" ", 1) for part in page.headers["content-security-policy"].split(";"))
    assert (policy["default-src"], policy["connect-src"], policy["frame-ancestors"]) == ("'none'", "'self'", "'none'")
    for tag, number in (("script", 2), ("style", 1)):
        inside = re.findall(rf"<{tag}>(.*?)</{tag}>", page.text, re.DOTALL)
        hashes = [f"'sha256-{b64encode(hashlib.sha256(one.encode()).digest()).decode()}'" for one in inside]
        assert (len(inside), policy[f"{tag}-src"].split()) == (number, hashes)
    assert not re.search(r"(?:src|href)=.?(?:https?:)?//", page.text)
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["vary"] == "accept"
    assert "Cinema" not in page.text


def test_a_page_is_given_to_this_machine_alone_where_nobody_needs_a_token(shelf: Served) -> None:
    refused = ask(shelf, "http://evil.example/dashboards", accept=BROWSER)
    assert (refused.status_code, refused.json()["code"]) == (403, "host-forbidden")


def test_programs_get_what_to_ask_for_and_how_to_draw_it(shelf: Served) -> None:
    assert ask(shelf, "/dashboards").json() == [
        {"name": "cinema", "title": "Cinema", "description": ""},
        {"name": "people", "title": "People", "description": ""},
    ]
    board = ask(shelf, "/dashboards/cinema", limits={"page": 3}).json()
    assert (board["title"], board["refresh"]) == ("Cinema", 5.0)
    assert board["charts"][0] == {
        "title": "Films",
        "type": "bar",
        "endpoint": "films",
        "x": "year",
        "y": ["rating"],
        "series": None,
        "combine": "sum",
        "unit": "",
        "width": "half",
        "query": {"$filter": {}, "$order_by": {}, "$limit": 3},
    }
    assert board["charts"][1]["query"]["$filter"] == {"$or": [{"region": "US"}, {"year": 1}]}


def test_a_name_that_no_dashboard_has(shelf: Served) -> None:
    answer = ask(shelf, "/dashboards/cinena")
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown-dashboard")
    assert answer.json()["hint"] == "did you mean 'cinema'? dashboards: cinema, people"


@pytest.mark.parametrize("path", ["/dashboards", "/dashboards/cinema", "/dashboards/nothing"])
def test_without_a_token_nothing_is_told(path: str, shelf: Served) -> None:
    for key, said in ((None, (401, "no-token")), ("k-wrong", (401, "bad-token")), ("k-live", (403, "wrong-scope"))):
        answer = guarded(shelf, path, key)
        assert (answer.status_code, answer.json()["code"]) == said


def test_charts_that_name_hidden_columns_or_endpoints_are_as_if_they_were_not_there(shelf: Served) -> None:
    assert len(guarded(shelf, "/dashboards/cinema", "k-all").json()["charts"]) == 2
    assert [one["name"] for one in guarded(shelf, "/dashboards", "k-narrow").json()] == ["cinema"]
    seen = guarded(shelf, "/dashboards/cinema", "k-narrow")
    assert [one["title"] for one in seen.json()["charts"]] == ["Films"]
    assert "region" not in seen.text
    hidden = guarded(shelf, "/dashboards/people", "k-narrow")
    assert (hidden.status_code, hidden.json()["hint"]) == (404, "dashboards: cinema")


CALLS = """
const told = {
  ticks: [ticks(0, 97, 4), ticks(-3, 4, 4), ticks(0, 0, 4), ticks(0, 0.007, 3)],
  axis: [["2026-01-31", null], ["2026-01-31T00:00:00Z"], [1, 2.5], ["1", "2"], []].map(axisOf),
  numbers: ["12.50", "NaN", null, true, 3, ""].map(numeric),
  combined: [...["sum", "average", "min", "max"].map((how) => combined(how, [1, "4", null])), combined("sum", [null])],
  apart: grouped(
    [{ d: "2026-01-02", c: "b", n: 1 }, { d: "2026-01-01", c: "a", n: 2 }, { d: "2026-01-02", c: "b", n: 5 }],
    { x: "d", y: ["n"], series: "c", combine: "sum" },
  ),
  many: grouped(
    Array.from({ length: 12 }, (_, n) => ({ x: "one", c: `c${n}`, n })),
    { x: "x", y: ["n"], series: "c", combine: "sum" },
  ).series.map((one) => [one.name, one.values[0]]),
  beside: grouped([{ x: "p", a: 1, b: 2 }, { x: null, a: 3, b: null }], { x: "x", y: ["a", "b"], combine: "sum" }),
  extent: [true, false].map((stacked) => extent([{ values: [3, -2] }, { values: [4, null] }], stacked)),
  spaced: spaced([[0, "a"], [10, "b"], [70, "a"], [140, "c"], [210, "c"]], 60),
  texts: [numberText(1999), numberText(12345.678, "h"), numberText(null), percentText(1 / 3)],
  shares: shares([{ k: "a", n: 1 }, { k: "b", n: 3 }, { k: "c", n: -5 }], { x: "k", y: ["n"], combine: "sum" }),
};
process.stdout.write(JSON.stringify(told));
"""


@pytest.mark.service
def test_how_rows_become_points() -> None:
    node = shutil.which("node")
    assert node is not None, "the scripts of pages are tested with Node 18 or later: install the package nodejs"
    script = (Path(headrace.serve.__file__).parent / "static" / "charts.js").read_text(encoding="utf-8")
    english = {"LC_ALL": "en_GB.UTF-8"}
    done = subprocess.run(
        [node, "-"], input=script + CALLS, env=english, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["ticks"] == [[0, 50, 100], [-4, -2, 0, 2, 4], [0, 0.5, 1], [0, 0.005, 0.01]]
    assert told["axis"] == ["time", "time", "number", "name", "name"]
    assert told["numbers"] == [12.5, None, None, None, 3, None]
    assert told["combined"] == [5, 2.5, 1, 4, None]
    assert told["apart"] == {
        "axis": "time",
        "xs": [1767225600000, 1767312000000],
        "series": [{"name": "a", "values": [2, None]}, {"name": "b", "values": [None, 6]}],
        "dates": True,
    }
    assert told["many"] == [*([f"c{n}", n] for n in (10, 11, 5, 6, 7, 8, 9)), ["others", 10]]
    assert told["beside"]["xs"] == ["p", "none"]
    assert told["beside"]["series"] == [{"name": "a", "values": [1, 3]}, {"name": "b", "values": [2, None]}]
    assert told["extent"] == [[-2, 7], [-2, 4]]
    assert told["spaced"] == [[0, "a"], [140, "c"]]
    assert told["texts"] == ["1999", "12,345.68\u00a0h", "–", "33.3%"]
    assert told["shares"] == [
        {"name": "b", "value": 3, "share": 0.75},
        {"name": "a", "value": 1, "share": 0.25},
    ]
