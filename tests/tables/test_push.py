"""The kind `push`: its options, and a reader that takes what is in the inboxes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from pydantic import ValidationError

from headrace.core.context import Context
from headrace.core.errors import ProjectError
from headrace.core.tables import RowChange, TableReader, TableShape
from headrace.log.inbox import Inbox
from headrace.tables.push import PushReader, PushTable
from headrace.tables.push.rows import PushRows

ORDERS = PushTable(columns="id bigint, amount decimal(12,2), at timestamp, raw binary, m map<string, int>", key=["id"])
Push = Callable[..., int]


@pytest.fixture
def push(context: Context) -> Push:
    rows = PushRows("orders", ORDERS.declared)
    inbox = Inbox(context.log_path, "orders", ORDERS.max_age)

    def send(op: str, key: str | None = None, **row: Any) -> int:
        (place,) = inbox.add([rows.pushed({"op": op, "row": row}, key)])
        assert isinstance(place, int)
        return place

    return send


def reader(context: Context, after: dict[str, Any] | None = None, table: PushTable = ORDERS) -> TableReader:
    shapes = {} if after is None else {"orders": ORDERS.declared}
    return PushTable.reader({"orders": table}, shapes, after, context)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"columns": "id bigint, name strin", "key": ["id"]}, "not a list of columns"),
        ({"columns": "order_id bigint", "key": ["orderid"]}, "did you mean 'order_id'?"),
        ({"columns": "id array<int>", "key": ["id"]}, "cannot identify rows"),
        ({"columns": "id bigint", "key": []}, "at least 1 item"),
        ({"columns": "id bigint", "key": ["id", "id"]}, "twice"),
    ],
)
def test_options_that_make_no_table_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said.replace("?", r"\?")):
        PushTable.model_validate(options)


def test_a_new_table_is_whole_at_once_and_then_changes(context: Context, push: Push) -> None:
    following = reader(context)
    first = following.read(0)
    assert first is not None
    assert (first.begins, first.ends) == ({"orders"}, {"orders"})
    assert first.shapes == {"orders": ORDERS.declared}
    assert following.read(0) is None
    push("insert", id=1, amount="2.5", at="2026-01-31T12:00:00+01:00", raw="AP8=", m={"a": 1})
    push("delete", id=7)
    taken = following.read(5)
    assert taken is not None
    at = datetime(2026, 1, 31, 11, tzinfo=UTC)
    assert taken.changes == [
        RowChange("orders", [1, Decimal("2.50"), at, b"\x00\xff", [("a", 1)]]),
        RowChange("orders", None, (7,)),
    ]
    assert taken.position == {"orders": 2}
    assert taken.at is not None
    assert following.lag() == 0


def test_a_new_reader_goes_on_where_the_last_was_durable(context: Context, push: Push) -> None:
    push("insert", id=1)
    push("insert", id=2)
    taken = reader(context, {"orders": 1}).read(0)
    assert taken is not None
    assert [change.row[0] for change in taken.changes if change.row] == [2]
    assert not taken.begins


def test_what_is_confirmed_is_let_go_and_keys_are_not(context: Context, push: Push) -> None:
    for number in (1, 2, 3):
        push("insert", key=str(number), id=number)
    following = PushReader({"orders": ORDERS}, {"orders": ORDERS.declared}, {"orders": 0}, context, cut_seconds=0)
    following.confirm({"orders": 2})
    assert Inbox(context.log_path, "orders", ORDERS.max_age).begin() == 2
    assert push("insert", key="1", id=1) == 1
    with pytest.raises(ProjectError) as caught:
        reader(context, {"orders": 1}).read(0)
    assert caught.value.code == "push-inbox-cut"
    assert following.lag() == 3


def test_more_columns_are_told_and_old_changes_have_none_of_them(context: Context, push: Push) -> None:
    push("insert", id=1)
    more = replace_columns("id bigint, amount decimal(12,2), at timestamp, raw binary, m map<string, int>, note string")
    following = reader(context, {"orders": 0}, more)
    told = following.read(0)
    assert told is not None
    assert told.shapes["orders"].columns.names[-1] == "note"
    taken = following.read(0)
    assert taken is not None
    assert taken.changes[0].row == [1, None, None, None, None, None]


def test_types_that_were_changed_meanwhile_stop_the_table(context: Context, push: Push) -> None:
    push("insert", id=1, m={"a": 1})
    other = PushTable(columns="id bigint, m int", key=["id"])
    following = reader(context, {"orders": 0}, other)
    following.read(0)
    with pytest.raises(ProjectError) as caught:
        following.read(0)
    assert caught.value.code == "push-inbox-damaged"


def test_all_pushed_tables_are_one_group(context: Context) -> None:
    assert ORDERS.group == replace_columns("id int").group == "push"
    assert ORDERS.shape(context) == TableShape(ORDERS.declared.columns, ("id",))


def replace_columns(columns: str) -> PushTable:
    return PushTable(columns=columns, key=["id"])
