"""Builds ME_WORKFLOW_SUMMARY events from the facts of ended workflows (see workflow.py)."""

from __future__ import annotations

import hashlib
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import msgspec
import pyarrow as pa

EID = "ME_WORKFLOW_SUMMARY"
_CENT = Decimal("0.01")

Facts = dict[str, Any]


def rounded(value: float) -> float:
    """Round to two digits, halves up, as upstream does: the shortest decimal text of the number is rounded."""
    return float(Decimal(repr(value)).quantize(_CENT, ROUND_HALF_UP))


class Summary:
    """Builds one event per workflow. `compat: sunbird` counts pages as upstream does; otherwise all visits count."""

    columns = "mid string, value string"
    keep = False

    def __init__(self, compat: str = "none", app: str = "") -> None:
        """`app` is the app of workflows whose events name none."""
        self._upstream = compat == "sunbird"
        self._app = app

    def process(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        events = [self.event(msgspec.json.decode(facts)) for facts in batch.column("facts").to_pylist()]
        texts = [msgspec.json.encode(event).decode() for event in events]
        columns = [pa.array([event["mid"] for event in events], pa.string()), pa.array(texts, pa.string())]
        return pa.RecordBatch.from_arrays(columns, names=["mid", "value"])

    def event(self, facts: Facts) -> dict[str, Any]:
        about = facts["about"]
        pdata = about["pdata"]
        where = {"id": pdata.get("id") or self._app, "ver": pdata.get("ver") or "1.0", "pid": pdata.get("pid")}
        return {
            "eid": EID,
            "syncts": facts["synced"],
            "ver": "1.0",
            "mid": _mid(facts, where["id"]),
            "uid": about["uid"],
            "context": {
                "pdata": {"id": "AnalyticsDataPipeline", "ver": "1.0", "model": "WorkflowSummarizer"},
                "granularity": "SESSION",
                "date_range": {"from": facts["start"], "to": facts["end"]},
                **{name: about[name] for name in ("rollup", "cdata") if name in about},
            },
            "dimensions": {
                "did": about["did"],
                "pdata": {name: value for name, value in where.items() if value is not None},
                "sid": about["sid"],
                "channel": about["channel"],
                "type": facts["type"],
                "mode": facts["mode"],
            },
            **{name: about[name] for name in ("object", "tags") if name in about},
            "edata": {"eks": self._numbers(facts)},
        }

    def _numbers(self, facts: Facts) -> dict[str, Any]:
        pages = self._pages(facts["visits"])
        return {
            "start_time": facts["start"],
            "end_time": facts["end"],
            "time_diff": rounded((facts["end"] - facts["start"]) / 1000),
            "time_spent": rounded(facts["spent"]),
            "telemetry_version": facts["about"].get("ver"),
            "item_responses": facts["items"],
            "interact_events_count": facts["interactions"],
            "interact_events_per_min": _per_minute(facts["interactions"], facts["spent"]),
            "env_summary": self._envs(pages),
            "events_summary": [{"id": eid, "count": count} for eid, count in facts["events"].items()],
            "page_summary": pages,
        }

    def _pages(self, visits: list[list[Any]]) -> list[dict[str, Any]]:
        """Return pages in the order of their first visit. Upstream keeps only the last visit of each."""
        by_page: dict[Any, list[list[Any]]] = {}
        for visit in visits:
            by_page.setdefault(visit[0] if self._upstream else tuple(visit[:3]), []).append(visit)
        pages = []
        for page_visits in by_page.values():
            counted = page_visits[-1:] if self._upstream else page_visits
            page, kind, env, _ = counted[-1]
            spent = rounded(sum(visit[3] for visit in counted) / 1000)
            pages.append({"id": page, "type": kind, "env": env, "time_spent": spent, "visit_count": len(counted)})
        return pages

    def _envs(self, pages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return totals by environment. Upstream uses the visits of the most visited page of an environment."""
        by_env: dict[Any, list[dict[str, Any]]] = {}
        for page in pages:
            by_env.setdefault(page["env"], []).append(page)
        combine = max if self._upstream else sum
        return [
            {
                "env": env,
                "time_spent": rounded(sum(page["time_spent"] for page in env_pages)),
                "count": combine(page["visit_count"] for page in env_pages),
            }
            for env, env_pages in by_env.items()
        ]


def _mid(facts: Facts, app: str) -> str:
    """Return the id of the summary, which is the same when the workflow is summarised again."""
    about, obj = facts["about"], facts["about"].get("object")
    object_id = obj.get("id", "NA") if isinstance(obj, dict) else "NA"
    subject = f"{about['uid']}{facts['type']}{facts['mode']}"
    text = f"{EID}|{subject}|{facts['start']}|{facts['end']}|SESSION|{object_id}|{app}|{about['channel']}"
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest().upper()


def _per_minute(count: int, spent: float) -> float:
    if not count or not spent:
        return 0.0
    return float(count) if spent < 60 else rounded(count / (spent / 60))
