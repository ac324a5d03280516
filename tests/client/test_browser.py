"""The browser client, run by Node: the same module, the same fetch."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import headrace.serve

MODULE = Path(headrace.serve.__file__).parent / "static" / "headrace.js"


def event(kind: str, place: str, **data: Any) -> bytes:
    return f"id: {place}\nevent: {kind}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


@pytest.mark.service
def test_asks_and_watches(server: Any) -> None:
    node = shutil.which("node")
    assert node is not None, "the browser client is tested with Node 18 or later: install the package nodejs"
    columns = [{"name": "n", "type": "int"}]
    server.reply(
        {"body": {"id": 1}},
        {"status": 404, "body": {"code": "no-row"}},
        {"body": [{"id": 1}, {"id": 2}], "headers": {"X-Next-Cursor": "c1"}},
        {"body": [{"id": 3}]},
        {"status": 429, "body": {"code": "busy"}, "headers": {"Retry-After": "0.01"}},
        {"body": 7},
        {"body": {"columns": columns, "rows": [[1]], "truncated": False}},
        {"status": 403, "body": {"code": "wrong-scope", "detail": "no", "hint": "ask"}},
    )
    snapshot, insert = event("snapshot", "v1-7", row={"name": "ä"}), event("insert", "v1-9", row={"id": 2})
    cut = snapshot.index("ä".encode()) + 1
    server.stream([snapshot], [snapshot[:cut], snapshot[cut:], event("snapshot_end", "v1-8")], [insert])
    server.reply({"status": 401, "body": {"code": "token-expired"}})
    server.stream([insert])
    script = Path(__file__).parent / "watch.mjs"
    done = subprocess.run(
        [node, str(script), str(MODULE), server.url], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == {
        "row": {"id": 1},
        "missing": None,
        "rows": [1, 2, 3],
        "count": 7,
        "sql": {"columns": columns, "rows": [{"n": 1}], "truncated": False},
        "refused": [403, "wrong-scope", "ask"],
        "events": [
            ["snapshot", "v1-7", {"name": "ä"}],
            ["restart", None, None],
            ["snapshot", "v1-7", {"name": "ä"}],
            ["snapshot_end", "v1-8", None],
            ["insert", "v1-9", {"id": 2}],
        ],
        "ended": "token-expired",
        "mistake": "oops",
    }
    paths = [asked.path for asked in server.asked]
    assert paths[0] == "/films/1,x%2Fy%2Cz"
    assert paths[-3:] == ["/films/events?%24filter=%7B%22id%22%3A1%7D&types=insert&after=v1-8",
                          "/films/events?after=v1-9", "/films/events"]  # fmt: skip
    assert {asked.headers["authorization"] for asked in server.asked} == {"Bearer t"}
