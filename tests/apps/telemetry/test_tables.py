"""The OLAP tables: events become typed rows of lake tables, and the usual questions get the right numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.apps.telemetry.application import APP, Application, line

from headrace.engine.adhoc.answers import to_document
from headrace.engine.adhoc.query import AdHocSession
from headrace.engine.letters.dead_letters import read_dead_letters
from headrace.engine.state.state import StateDir
from headrace.serve.access.access import AccessControl
from headrace.serve.access.grants import Grant
from headrace.serve.access.stores import Stores
from headrace.serve.base.settings import Settings
from headrace.serve.sql.answer import execute
from headrace.serve.sql.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

NOW = datetime.now(UTC).replace(minute=30, second=0, microsecond=0) - timedelta(hours=1)
# a Wednesday; evenings in Greenwich are the next day in India
DAY = datetime(2026, 3, 4, 12, tzinfo=UTC)
FLOWS = ("telemetry_events_syncts", "summary_events", "error_events")


def ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def event(eid: str, user: str, at: datetime, mimetype: str | None = None, **more: Any) -> str:
    content = {} if mimetype is None else {"contentdata": {"mimetype": mimetype, "subject": ["Maths", "Art"]}}
    return line(
        {"eid": eid, "mid": f"{eid}-{user}-{ms(at)}", "syncts": ms(at), "actor": {"id": user}, **content, **more}
    )


def summary(user: str, channel: str, at: datetime, kind: str, seconds: float, object_type: str = "") -> str:
    dimensions = {"channel": channel, "type": kind, "did": "d"}
    return line(
        {
            "eid": "ME_WORKFLOW_SUMMARY",
            "syncts": float(ms(at)),
            "uid": user,
            "dimensions": dimensions,
            "object": {"type": object_type},
            "edata": {"eks": {"time_spent": seconds, "interact_events_count": 2.0, "page_summary": [{"id": "p"}]}},
        }
    )


WIDE = event(
    "SHARE",
    "u9",
    DAY,
    ets=1.7724e12,
    tags="only one",
    context={"cdata": [{"type": "UtmSource", "id": "news"}, {"type": "Other", "id": 7}], "rollup": "not an object"},
    edata={"items": [{"id": "a", "origin": {"id": "x"}}, {"id": "b"}], "size": "12", "duration": 0.5, "rating": "many"},
    devicedata={"devicespec": {"mem": 2048, "os": "Android 9"}, "firstaccess": 1578972432419},
    userdata={"grade": ["Class 1"], "roles": ["PUBLIC"]},
)
EVENTS = [
    *(event("IMPRESSION", user, DAY) for user in ("u1", "u2", "u2", "u3")),
    event("IMPRESSION", "u1", DAY + timedelta(hours=8)),
    event("INTERACT", "u4", DAY, "video/mp4"),
    event("INTERACT", "u5", DAY, "video/mp4"),
    event("INTERACT", "u5", DAY + timedelta(hours=1), "video/mp4"),
    event("INTERACT", "u5", DAY, "text/html"),
    WIDE,
    # numbers beyond those of a column, and a time that is none
    event("FEEDBACK", "u6", DAY, ets=1e300, edata={"rating": 1e300, "duration": "NaN"}),
    event("START", "u6", DAY, ets=ms(DAY), syncts=1e300),
    line({"eid": "START", "mid": "timeless", "syncts": 900_000_000_000_000_000}),
    "no json",
]
SUMMARIES = [
    summary("u1", "c1", NOW, "app", 10.5),
    summary("u1", "c1", NOW, "app", 4.5),
    summary("u2", "c1", NOW - timedelta(days=3), "app", 1.0),
    summary("u3", "c2", NOW, "content", 20.0, "Content"),
    summary("u3", "c2", NOW - timedelta(days=60), "app", 2.0),
    summary("u3", "c2", NOW - timedelta(days=60), "editor", 5.0, "Asset"),
]
ERRORS = [event("ERROR", "u4", DAY + timedelta(minutes=5), "video/mp4")]
Ask = Callable[[str], list[list[Any]]]


@pytest.fixture(scope="module")
def app(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Application:
    app = Application(tmp_path_factory.mktemp("app"))
    app.give("druid.events.telemetry", EVENTS)
    app.give("druid.events.summary", SUMMARIES)
    app.give("druid.events.error", ERRORS)
    app.run(spark, *FLOWS)
    return app


@pytest.fixture(scope="module")
def ask(app: Application) -> Any:
    """As `POST /sql` answers."""
    settings = Settings.of(app.project())
    stores = Stores(settings)

    def asked(name: str) -> list[list[Any]]:
        access = AccessControl(stores, settings.spec.limits, bytes)
        tables = Tables(access, Grant("all", frozenset({"sql"})), settings.lakes)
        text = (APP / "queries" / f"{name}.sql").read_text(encoding="utf-8")
        return list(json.loads(execute(text, None, tables, settings.spec.limits.sql))["rows"])

    yield asked
    stores.close()


def rows(app: Application, table: str) -> pa.Table:
    return DeltaTable(app.folder / "lake" / table).to_pyarrow_table()


def test_columns_are_typed_and_partitioned_by_day(app: Application) -> None:
    held = rows(app, "telemetry_events_syncts")
    kinds = {field.name: str(field.type) for field in held.schema}
    assert len(kinds) == 174 + 2
    assert (kinds["edata_size"], kinds["edata_duration"], kinds["eid"]) == ("int64", "double", "string")
    assert kinds["content_subjects"].startswith("list<")
    table = DeltaTable(app.folder / "lake" / "telemetry_events_syncts")
    assert table.metadata().partition_columns == ["day"]
    assert {str(day) for day in held["day"].to_pylist()} == {"2026-03-04"}


def test_values_of_all_shapes_arrive(app: Application) -> None:
    (found,) = [row for row in rows(app, "telemetry_events_syncts").to_pylist() if row["eid"] == "SHARE"]
    given = {
        "__time": DAY,
        "ets": 1772400000000,
        "tags": ["only one"],
        "utm_source": "news",
        "utm_medium": None,
        "context_cdata_id": ["news", "7"],
        "context_rollup_l1": None,
        "edata_items_id": ["a", "b"],
        "edata_items_origin_id": ["x", None],
        "edata_size": 12,
        "edata_duration": 0.5,
        "edata_rating": None,
        "device_mem": 2048,
        "device_os": "Android 9",
        "device_first_access": 1578972432419,
        "user_grade_list": ["Class 1"],
        "user_roles": ["PUBLIC"],
    }
    assert {name: found[name] for name in given} == given
    (beyond,) = [row for row in rows(app, "telemetry_events_syncts").to_pylist() if row["eid"] == "FEEDBACK"]
    assert (beyond["__time"], beyond["ets"], beyond["edata_rating"]) == (DAY, None, None)


def test_events_without_a_time_are_dead_letters(app: Application) -> None:
    letters = read_dead_letters(StateDir.of(app.project().context).dead_letters).to_pylist()
    assert [one["reason"] for one in letters] == ["condition-not-met"] * 2
    assert rows(app, "telemetry_events_syncts").num_rows == len(EVENTS) - 2


def test_summaries_have_what_druid_adds_up(app: Application) -> None:
    held = rows(app, "summary_events")
    assert sum(held["total_time_spent"].to_pylist()) == 43.0
    assert held["total_interactions"].to_pylist() == [2] * 6
    assert held["edata_page_summary_id"].to_pylist() == [["p"]] * 6


def test_active_users(ask: Ask) -> None:
    assert ask("active_users") == [["c1", 1]]
    assert ask("active_users_month") == [["c1", 2]]


def test_time_spent(ask: Ask) -> None:
    by_user: dict[str, float] = {}
    for _, user, _, seconds in ask("time_spent"):
        by_user[user] = by_user.get(user, 0.0) + seconds
    assert by_user == {"u1": 15.0, "u2": 1.0, "u3": 27.0}
    assert ask("learning_time") == [["u3", 20.0]]


def test_daily_users(ask: Ask) -> None:
    assert ask("daily_users") == [[2.0, 3, 2]]


def test_share_of_errors(app: Application, ask: Ask, spark: SparkSession, tmp_path: Path) -> None:
    found = [(kind, events, errors, percent) for kind, _, events, errors, percent in ask("error_share")]
    wanted = [("text/html", 1, 0, 0.0), ("video/mp4", 2, 1, 50.0), ("video/mp4", 1, 0, 0.0)]
    assert found == wanted
    project = app.project()
    session = AdHocSession(spark, project, StateDir.of(project.context), tmp_path / "letters")
    text = (APP / "queries" / "error_share.sql").read_text(encoding="utf-8")
    told = to_document(session.run(text))["rows"]
    assert [(kind, events, errors, float(percent)) for kind, _, events, errors, percent in told] == wanted


def test_the_newest_events(ask: Ask) -> None:
    assert ask("latest") == [["IMPRESSION", 1]]


def test_every_query_has_been_asked() -> None:
    asked = {
        "active_users",
        "active_users_month",
        "time_spent",
        "learning_time",
        "daily_users",
        "error_share",
        "latest",
    }
    assert {file.stem for file in (APP / "queries").glob("*.sql")} == asked
