"""Charts name endpoints and columns that there are: all that is wrong is said before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

FLOWS = """\
  spent:
    sql: SELECT id, status, amount, status = 'gone' AS gone FROM orders
    sinks: [{type: endpoint, key: id, delete: gone}]
  anything:
    sql: SELECT * FROM events
    sinks: [{type: endpoint, name: all_events}]
dashboards:
  board:
    title: Board
    charts:
"""


def chart(**keys: Any) -> str:
    given = {"title": "One", "type": "bar", "endpoint": "spent", "x": "status", "y": "amount", **keys}
    return f"{FLOWS}      - {{{', '.join(f'{key}: {value}' for key, value in given.items())}}}\n"


def test_charts_of_columns_that_are_there(planned: Any) -> None:
    planned(chart(series="id", filter="{$or: [{id: 7}, {$not: {status: new}}]}", order_by="{amount: desc}"))
    planned(chart(endpoint="all_events", x="whatever", y="anything"))


@pytest.mark.parametrize(
    ("keys", "code", "path", "hint"),
    [
        ({"endpoint": "spend"}, "unknown-endpoint", "endpoint", "did you mean 'spent'?"),
        ({"x": "state"}, "unknown-column", "x", "did you mean 'status'? columns of 'spent': amount, id, status"),
        ({"y": "[amount, ammount]"}, "unknown-column", "y", "did you mean 'amount'?"),
        ({"series": "gone"}, "unknown-column", "series", "columns of 'spent': amount, id, status"),
        ({"filter": "{$and: [{id: 1}, {idd: 2}]}"}, "unknown-column", "filter", "did you mean 'id'?"),
        ({"order_by": "{amunt: desc}"}, "unknown-column", "order_by", "did you mean 'amount'?"),
    ],
)
def test_names_that_there_are_not(errors: Any, keys: Any, code: str, path: str, hint: str) -> None:
    (error,) = errors(chart(**keys))
    assert error.code == code
    assert error.where.path.startswith(f"dashboards.board.charts[0].{path}")
    assert hint in error.hint


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"y": "[]"}, "a bar needs 'x' and 'y'"),
        ({"type": "pie", "y": "[id, amount]"}, "a pie needs one column as 'y'"),
        ({"type": "number"}, "a number has no 'x'"),
        ({"type": "line", "y": "[id, amount]", "series": "status"}, "'series' is for a line or a bar"),
    ],
)
def test_keys_that_do_not_fit_the_type(errors: Any, keys: Any, message: str) -> None:
    (error,) = errors(chart(**keys))
    assert message in error.message


def test_keys_and_values_nobody_knows(errors: Any) -> None:
    (error,) = errors(chart(titel="x"))
    assert (error.code, "'title'" in error.hint) == ("unknown-key", True)
    (error,) = errors(chart(type="lines"))
    assert "line" in error.hint
    (error,) = errors(FLOWS.replace("title: Board", "title: Board\n    refresh: 10ms") + chart()[len(FLOWS) :])
    assert "at least 1s" in error.message
