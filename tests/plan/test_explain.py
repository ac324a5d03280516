from __future__ import annotations

import json
from typing import Any

from headrace.plan.explain import to_dot, to_json, to_text

FLOWS = """\
  raw: {sql: "SELECT id, ts FROM orders WHERE status = 'new'", sinks: [{type: lake, path: lake/raw}]}
  part: {sql: SELECT id FROM payments}
  all:
    sql: SELECT raw.id FROM raw JOIN part ON raw.id = part.id
    description: everything
    sinks: [console, {type: lake, path: 'a"b'}]
"""


def test_people_see_inputs_columns_state_and_guarantees(planned: Any) -> None:
    text = "\n".join(to_text(planned(FLOWS)))
    assert "flow raw  (every 1s, exactly_once, stateless)" in text
    assert "columns id, status, ts" in text
    assert "only rows where status = 'new'" in text
    assert "event time ts, waits 10s for late records" in text
    assert "part: that flow's query, run as part of this one" in text
    assert "raw: the lake table of that flow" in text
    assert "state: join" in text


def test_programs_see_the_same(planned: Any) -> None:
    document = json.loads(json.dumps(to_json(planned(FLOWS))))
    raw, both = document["flows"]
    assert (raw["name"], raw["guarantee"], raw["state"], raw["columns"]) == ("raw", "exactly_once", [], ["id", "ts"])
    assert raw["inputs"][0]["filters"] == ["status = 'new'"]
    assert both["description"] == "everything"
    assert [(one["name"], one.get("through")) for one in both["inputs"]] == [("part", "inlined"), ("raw", "lake")]


def test_the_graph_has_every_flow_stream_and_sink(planned: Any) -> None:
    dot = to_dot(planned(FLOWS))
    for part in ('"stream orders" -> "flow raw"', '"flow raw" -> "flow all"', '-> "flow all"', 'a\\"b'):
        assert part in dot
