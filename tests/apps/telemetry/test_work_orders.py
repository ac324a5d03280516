"""Work orders taken apart, against what upstream's tests expect of it."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from tests.apps.telemetry.application import APP, fixture

_SPEC = importlib.util.spec_from_file_location("work_orders", APP / "processors" / "work_orders.py")
assert _SPEC is not None
assert _SPEC.loader is not None
work_orders: Any = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(work_orders)
FOLDER = "igot-cb-preprocessor"


def order_of(name: str) -> dict[str, msgspec.Raw]:
    event = json.loads(fixture(f"{FOLDER}/{name}.json"))
    document = json.dumps(event["edata"]["cb_data"]["data"])
    return msgspec.json.decode(document, type=dict[str, msgspec.Raw])


def plain(rows: Any) -> list[Any]:
    return [json.loads(msgspec.json.encode(row)) for row in rows]


@pytest.mark.parametrize(
    "name",
    [
        "WO_EVENT",
        "WO_EVENT_NO_ACTIVITY",
        "WO_EVENT_NO_COMPETENCY",
        "WO_EVENT_NO_RCL",
        "WO_EVENT_NO_USERS",
        "WO_EVENT_USERS_NULL",
    ],
)
def test_items_are_those_of_upstream(name: str) -> None:
    assert plain(work_orders.items(order_of(name))) == json.loads(fixture(f"{FOLDER}/{name}_RESULT.json"))


def test_officers_are_those_of_upstream() -> None:
    expected = json.loads(fixture(f"{FOLDER}/WO_EVENT_POSITIONS_RESULT.json"))
    assert plain(work_orders.officers(order_of("WO_EVENT"))) == expected


def test_items_outside_of_roles_and_fields_beside_a_role() -> None:
    order = {
        "id": 1,
        "users": [
            {
                "id": 2,
                "unmappedActivities": [{"id": 3}],
                "unmappedCompetencies": [{"id": 4, "level": 12345678901234567890}],
                "roleCompetencyList": [{"weight": 1.50, "roleDetails": None, "competencyDetails": [{"id": 5}]}],
            },
            {"id": 6, "unmappedActivities": "none", "roleCompetencyList": [{"roleDetails": {"childNodes": [{}]}}]},
        ],
    }
    fields = msgspec.json.decode(json.dumps(order), type=dict[str, msgspec.Raw])
    assert plain(work_orders.items(fields)) == [
        {"id": 1, "wa_id": 2, "wa_activity_id": 3},
        {"id": 1, "wa_id": 2, "wa_competency_id": 4, "wa_competency_level": 12345678901234567890},
        {"id": 1, "wa_id": 2, "wa_rcl_weight": 1.5, "wa_competency_id": 5},
        {"id": 1, "wa_id": 6},
    ]


def test_events_have_ids_that_follow_from_the_one_they_come_from() -> None:
    value = fixture(f"{FOLDER}/WO_EVENT.json")
    row = {"topic": "t", "mid": "CB.1", "value": value, "work_order": True, "published": True}
    draft = row | {"published": False, "mid": None}
    plain_event = row | {"work_order": False}
    step = work_orders.WorkOrders(officers="o", rows="r")
    batch = pa.RecordBatch.from_pylist([row, draft, plain_event])
    made = step.process(batch).to_pylist()
    assert made == step.process(batch).to_pylist()
    assert [one["topic"] for one in made] == ["t", "o", "r", "r", "t", "o", "t"]
    assert len({one["key"] for one in made}) == 6
    officer, item = json.loads(made[1]["value"]), json.loads(made[2]["value"])
    assert (officer["eid"], officer["mid_parent"], officer["mid"]) == ("CB_ITEM_USER", "CB.1", made[1]["key"])
    assert item["mid"].startswith("CB_ITEM:")
    assert item["edata"]["cb_data"]["wa_activity_id"] == "id01"
    assert item["edata"]["cb_object"] == json.loads(value)["edata"]["cb_object"]
    assert "mid_parent" not in json.loads(made[5]["value"])
    assert step.process(batch.slice(0, 0)).num_rows == 0
