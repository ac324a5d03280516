"""The telemetry service: what clients POST is answered as upstream does, and comes out in the topic of the pipeline."""

from __future__ import annotations

import asyncio
import gzip
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from headrace.cli.projects._serving import wants_serving
from headrace.engine.flows.flow import FlowStarter
from headrace.engine.positions.release_positions import PositionReleaser
from headrace.engine.state.state import StateDir
from headrace.engine.supervise.runner import Runner
from headrace.plan.planner import make_plan
from headrace.project.loader import Project, load
from headrace.serve.base.settings import Settings
from headrace.serve.rest.app import create_app

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APP = Path(__file__).parents[3] / "apps" / "telemetry"
HEADERS = {"x-device-id": "d1", "x-channel-id": "ch1", "x-app-id": "app1", "content-encoding": "gzip"}
BATCH = {"id": "api.telemetry", "ver": "3.0", "did": "theirs", "params": {"msgid": "m"}, "events": [{"eid": "START"}]}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    folder = tmp_path / "telemetry"
    shutil.copytree(APP, folder, ignore=shutil.ignore_patterns(".headrace", "__pycache__", "out", "lake"))
    return load(folder)


def post(project: Project, body: bytes, **headers: str) -> httpx.Response:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=create_app(Settings.of(project)))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            sent = {"content-type": "application/json", **headers}
            return await client.post("/v1/telemetry", content=body, headers=sent)

    return asyncio.run(ask())


def test_answers_are_those_of_the_telemetry_service(project: Project) -> None:
    answer = post(project, json.dumps(BATCH).encode())
    said = answer.json()
    assert isinstance(said.pop("ets"), int)
    assert (answer.status_code, said) == (
        200,
        {"id": "api.telemetry", "ver": "1.0", "params": {}, "responseCode": "SUCCESS"},
    )
    wrong = post(project, b"{")
    assert (wrong.status_code, wrong.json()["params"]["err"], wrong.json()["responseCode"]) == (
        400,
        "bad-json",
        "CLIENT_ERROR",
    )


def test_health_is_that_of_the_telemetry_service(project: Project) -> None:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=create_app(Settings.of(project)))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get("/health")

    well = asyncio.run(ask())
    said = {"id": "api.health", "ver": "1.0", "params": {}, "responseCode": "SUCCESS"}
    assert (well.status_code, {**well.json(), "ets": 0}) == (200, {**said, "ets": 0})
    inboxes = Path(str(project.context.log_path)) / ".inbox"
    shutil.rmtree(inboxes)
    inboxes.write_text("a file where the folder was")
    ill = asyncio.run(ask())
    said |= {"params": {"err": "Telemetry API is unhealthy"}, "responseCode": "SERVER_ERROR"}
    assert (ill.status_code, {**ill.json(), "ets": 0}) == (500, {**said, "ets": 0})


def test_a_run_of_the_application_serves_it(project: Project) -> None:
    assert wants_serving(project, make_plan(project, ["ingest_http"]))


@pytest.mark.spark
def test_batches_come_out_in_the_topic_once(project: Project, spark: SparkSession) -> None:
    assert post(project, gzip.compress(json.dumps({**BATCH, "mid": "m1"}).encode()), **HEADERS).status_code == 200
    assert post(project, json.dumps(BATCH).encode()).status_code == 200
    state = StateDir.of(project.context)
    for _ in range(2):
        starter = FlowStarter(project, state, spark, until_caught_up=True)
        (run,) = Runner(starter, make_plan(project, ["ingest_http"])).run(seconds=300)
        assert run.error is None
    files = (project.root / "out/dev.telemetry.ingest").iterdir()
    first, second = sorted(
        (json.loads(line) for file in files for line in file.read_text().splitlines()),
        key=lambda one: one["mid"] != "m1",
    )
    assert first == {
        **BATCH,
        "did": "d1",
        "channel": "ch1",
        "pid": "app1",
        "mid": "m1",
        "id": "m1",
        "syncts": first["syncts"],
        "dataset": "sb-telemetry",
    }
    assert "did" not in second
    assert second["id"] == second["mid"]
    source = Settings.of(project).streams["telemetry_http"]
    inbox = source.inbox(project.context.log_path)
    assert (inbox.read(), inbox.end()) == (0, 2)
    PositionReleaser(project, state).release()
    assert (inbox.read(), inbox.begin()) == (2, 0)
