"""The cases of vectors.json as SQL, and what they must give."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

Case = dict[str, Any]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
CASES: list[Case] = [
    case
    for case in json.loads(Path(__file__).with_name("vectors.json").read_text(encoding="utf-8"))["cases"]
    if case.get("kind") != "transformer"  # those are a processor
]
REFUSED = [case for case in CASES if "error" in case]


def of_kind(kind: str) -> list[Case]:
    return [case for case in CASES if case.get("kind", "scalar") == kind and "error" not in case]


def literal(value: Any) -> str:
    """A value as Spark SQL writes it."""
    match value:
        case {"timestamp_s": seconds}:
            return f"timestamp_seconds({seconds})"
        case {"timestamp_ms": millis}:
            return f"timestamp_millis({millis})"
        case {"bytes": text}:
            return f"CAST('{text}' AS BINARY)"
        case list():
            return f"array({', '.join(map(literal, value))})"
        case str():
            return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
        case float():
            return f"{value!r}D"
    return str(value)


def call(case: Case) -> str:
    return f"{case['fn']}({', '.join(map(literal, case['args']))})"


def check(case: Case, found: Any) -> None:
    expect = case["expect"]
    match expect:
        case {"json": document}:
            assert json.loads(found) == document, case
        case {"timestamp_s": seconds}:
            assert found == EPOCH + timedelta(seconds=seconds), case
        case list() if case.get("order") == "any":
            assert sorted(found) == sorted(expect), case
        case float() | int() if not isinstance(expect, bool):
            assert math.isclose(found, expect, rel_tol=0, abs_tol=case.get("tol", 0)), (case, found)
        case _:
            assert found == expect, case


def plain(value: Any) -> Any:
    """Times as milliseconds."""
    return (value - EPOCH) / timedelta(milliseconds=1) if isinstance(value, datetime) else value
