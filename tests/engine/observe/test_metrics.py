"""Metrics, health and status over HTTP; alert rules and the dashboard name only what there is."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.reference.metrics import documented

from headrace.core.errors import ProjectError
from headrace.core.positions import Split
from headrace.core.tallies.tally import Tally
from headrace.engine.inputs.heartbeat import heartbeat_file
from headrace.engine.letters.dead_letter_audit import AuditLog
from headrace.engine.observe.http import StatusServer
from headrace.engine.observe.metrics import Metrics
from headrace.engine.observe.probes import ClosedLetterCounter, FileCounter, LagMeter, MeasuredLag
from headrace.engine.observe.status import EngineStatus
from headrace.engine.positions.lag import FlowLag, Pace
from headrace.engine.state.state import StateDir
from headrace.engine.supervise.background import Notes
from headrace.engine.supervise.flow_run import FlowRun
from headrace.plan.planner import make_plan
from headrace.project.loader import Project, load
from headrace.project.model import HttpSpec
from headrace.testing.services import Prometheus
from headrace.testing.services.probe import http_get

OPS = Path(__file__).parents[3] / "ops"
PROJECT = """
project: shop
streams:
  orders: {source: {type: generate, rate: 1, fields: {id: {sequence: "{}"}, at: {time: event}}}, event_time: at}
  visits: {source: {type: generate, rate: 1, fields: {id: {sequence: "{}"}, at: {time: event}}}, event_time: at}
  texts:
    source: {type: generate, rate: 1, fields: {id: {sequence: "{}"}}}
    format: {type: json, columns: id string}
flows:
  counted:
    sql: |
      SELECT window.start AS s, count(*) AS n
      FROM (SELECT at FROM orders UNION ALL SELECT at FROM visits) GROUP BY window(at, '10 seconds')
    sinks: [noop]
  plain: {sql: SELECT id FROM texts, sinks: [noop], required: false}
"""
NOW = datetime.now(UTC).replace(microsecond=0)


def report(number: int = 0, rows: int = 100) -> dict[str, Any]:
    """What Spark says about a batch of a windowed flow."""
    operator = {"numRowsTotal": 7, "memoryUsedBytes": 5000, "numRowsDroppedByWatermark": 3}
    newest = (NOW - timedelta(seconds=2)).isoformat().replace("+00:00", "Z")
    seen = SimpleNamespace(asDict=lambda: {"rows": rows, "newest": newest})
    given = {"rows": 40}
    return {
        "batchId": number,
        "timestamp": NOW.isoformat().replace("+00:00", "Z"),
        "numInputRows": rows,
        "durationMs": {"addBatch": 400, "triggerExecution": 500, "somethingNew": 1},
        "eventTime": {"watermark": (NOW - timedelta(seconds=12)).isoformat().replace("+00:00", "Z")},
        "stateOperators": [operator],
        "observedMetrics": {"input:orders": seen, "output": _Row(given)},
        "sink": {"numOutputRows": -1},
    }


class _Row(dict[str, Any]):
    def asDict(self) -> dict[str, Any]:  # noqa: N802  # as Spark calls it
        return dict(self)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "headrace.yaml").write_text(PROJECT)
    return load(tmp_path)


@pytest.fixture
def engine_status(project: Project) -> EngineStatus:
    """Two flows: one with everything, one of which nothing is known yet."""
    state = StateDir(Path(project.context.state))
    runs = [FlowRun(flow) for flow in make_plan(project, []).flows]
    notes = Notes()
    lags = LagMeter("shop", project.context, state, runs, notes)
    letters, late = FileCounter(state.dead_letters, "reason"), FileCounter(state.root / "late")
    engine_status = EngineStatus("shop", 1, runs, notes, lags, letters, ClosedLetterCounter(state.dead_letters), late)
    counted = next(run for run in runs if run.plan.name == "counted")
    counted.mark_running()
    counted.counters.take(report())
    splits = {"orders": [Split("orders", 0, 0, 12, 10, 1.5)], "visits": [Split("visits", 0, 0, 5, 5, 0.0)]}
    lags.measured["counted"] = MeasuredLag(FlowLag("counted", "g1", splits, Pace("growing"), {}), NOW)
    _write_letters(state, "counted", {"malformed": 2, "no-event-time": 1})
    closed = pa.table({"flow": ["counted"], "generation": ["g1"], "id": ["a"]})
    for _ in range(2):  # marked twice, closed once
        AuditLog(state.dead_letters).append("discarded", closed)
    letters.measure()
    engine_status.closed.measure()
    return engine_status


def _write_letters(state: StateDir, flow: str, reasons: dict[str, int]) -> None:
    folder = state.dead_letters / flow / "orders"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"reason": [one for one, n in reasons.items() for _ in range(n)]}), folder / "a.parquet")


@pytest.fixture
def server(engine_status: EngineStatus, monkeypatch: pytest.MonkeyPatch) -> Iterator[StatusServer]:
    metrics = Metrics(engine_status)
    metrics.batch_done(SimpleNamespace(name="counted"), report())  # type: ignore[arg-type]
    monkeypatch.setattr("headrace.engine.observe.metrics.ENGINE", tally := Tally())
    tally.add("counted", "noop", "written", 9)
    monkeypatch.setattr("headrace.engine.observe.volumes.ENGINE", tally)
    tally.add_bytes("counted", "noop", 900)
    monkeypatch.setattr("headrace.engine.observe.volumes.step_counts", lambda: {("plain", "texts", "bytes_in"): 70})
    one = StatusServer(HttpSpec(port=0), engine_status, metrics)
    yield one
    one.close()


def get(server: StatusServer, path: str) -> tuple[int, str]:
    answer = http_get(int(server.address.rpartition(":")[2]), path, patience=60)
    assert answer is not None
    return answer[0], answer[1].decode()


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(text)
    return {(one.name, tuple(sorted(one.labels.items()))): one.value for family in families for one in family.samples}


def test_metrics_say_what_is_known_and_leave_out_what_is_not(server: StatusServer) -> None:
    status, text = get(server, "/metrics")
    assert status == 200
    found = samples(text)
    flow = ("flow", "counted")
    assert found["headrace_rows_in_total", (flow,)] == 100
    assert found["headrace_rows_out_total", (flow,)] == 40
    assert found["headrace_batches_total", (flow,)] == 1
    assert found["headrace_batch_duration_seconds_sum", (flow, ("phase", "process"))] == 0.4
    assert found["headrace_batch_duration_seconds_sum", (flow, ("phase", "total"))] == 0.5
    assert found["headrace_lag_records", (flow,)] == 2
    assert found["headrace_lag_seconds", (flow,)] == 1.5
    assert found["headrace_state_rows", (flow,)] == 7
    assert found["headrace_state_bytes", (flow,)] == 5000
    assert found["headrace_late_rows_total", (flow,)] == 3
    assert found["headrace_dead_letters_total", (flow, ("reason", "malformed"))] == 2
    assert found["headrace_dead_letters_total", (flow, ("reason", "no-event-time"))] == 1
    assert found["headrace_sink_rows_total", (flow, ("outcome", "written"), ("sink", "noop"))] == 9
    assert found["headrace_bytes_in_total", (("flow", "plain"), ("stream", "texts"))] == 70
    assert found["headrace_bytes_out_total", (flow, ("sink", "noop"))] == 900
    assert [labels for name, labels in found if name == "headrace_bytes_in_total" and flow in labels] == []
    assert found["headrace_end_to_end_latency_seconds", (flow,)] == 2.5
    assert found["headrace_flow_state", (flow, ("state", "running"))] == 1
    assert found["headrace_flow_state", (flow, ("state", "failed"))] == 0
    assert found["headrace_flow_state", (("flow", "plain"), ("state", "starting"))] == 1
    assert found["headrace_watermark_gap_seconds", (flow,)] >= 12
    assert found["headrace_memory_bytes", (("process", "engine"),)] > 1e6
    unknown = [name for name, labels in found if ("flow", "plain") in labels and "lag" in name]
    assert unknown == []
    phases = {dict(labels)["phase"] for name, labels in found if name == "headrace_batch_duration_seconds_sum"}
    assert "somethingNew" not in phases, "the set of labels is bounded"


def test_the_reference_has_every_series(server: StatusServer) -> None:
    names = {name for name, _ in samples(get(server, "/metrics")[1])} | known_names(server)
    assert len(names) > 40
    assert [name for name in names if not documented(name)] == []


def test_status_has_null_for_the_unknown_and_names_who_holds_the_watermark(server: StatusServer) -> None:
    status, text = get(server, "/api/v1/status")
    document = json.loads(text)
    assert status == 200
    assert document["flows"] == {"starting": 1, "running": 1}
    assert document["worst_lag"] == {"flow": "counted", "s": 1.5}
    assert (document["dead_letters"]["met"], document["dead_letters"]["open"]) == (3, 2)
    flows = {flow["name"]: flow for flow in document["flow_list"]}
    counted, plain = flows["counted"], flows["plain"]
    assert counted["lag"]["records"] == 2
    assert counted["lag"]["trend"] == "growing"
    assert counted["load"] == 0.5
    assert counted["held_back_by"] == "visits"
    assert {one["name"]: one["lag_records"] for one in counted["streams"]} == {"orders": 2, "visits": 0}
    assert counted["last_batch"]["phases_s"] == {"addBatch": 0.4, "somethingNew": 0.001}
    assert (plain["lag"], plain["rows_in"], plain["watermark"], plain["load"], plain["last_batch"]) == (None,) * 5
    assert (counted["bytes_in"], counted["bytes_out"]) == (None, 900), "its streams have no decoder"
    assert plain["late_rows"] is None, "a flow without windows has no late rows"


def test_an_idle_report_repeats_no_late_rows(engine_status: EngineStatus) -> None:
    counted = next(run for run in engine_status.runs if run.plan.name == "counted")
    counted.counters.take(report(1, rows=0))
    assert counted.counters.late_rows == 3
    assert counted.counters.rows_in == 100


def test_ready_only_when_every_required_flow_runs(server: StatusServer, engine_status: EngineStatus) -> None:
    assert get(server, "/health/live")[0] == 200
    assert get(server, "/health/ready")[0] == 200, "plain is starting, but not required"
    counted = next(run for run in engine_status.runs if run.plan.name == "counted")
    counted.degrade(ProjectError("broker-unreachable", "no broker at 127.0.0.1:9"))
    status, text = get(server, "/health/ready")
    assert status == 503
    assert json.loads(text)["reasons"] == [{"flow": "counted", "state": "degraded", "text": "no broker at 127.0.0.1:9"}]
    assert get(server, "/health/live")[0] == 200
    assert engine_status.document()["problems"][0]["code"] == "broker-unreachable"


def test_secrets_in_reasons_are_hidden(engine_status: EngineStatus) -> None:
    engine_status.redact = lambda text: text.replace("hunter2", "****")
    engine_status.runs[0].degrade(ProjectError("broker-unreachable", "login hunter2 refused"))
    assert "hunter2" not in json.dumps(engine_status.document()) + json.dumps(engine_status.not_ready())


def test_unknown_paths_and_methods_are_refused(server: StatusServer) -> None:
    assert get(server, "/etc/passwd")[0] == 404
    connection = http.client.HTTPConnection("127.0.0.1", int(server.address.rpartition(":")[2]), timeout=60)
    connection.request("POST", "/api/v1/status", "{}")
    assert connection.getresponse().status == 501
    connection = http.client.HTTPConnection("127.0.0.1", int(server.address.rpartition(":")[2]), timeout=60)
    connection.request("GET", "/api/v1/status", headers={"Host": "evil.example:9470"})
    assert connection.getresponse().status == 403


def test_a_busy_port_gives_a_note_and_a_free_one(engine_status: EngineStatus) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = StatusServer(HttpSpec(port=port), engine_status, Metrics(engine_status))
        assert server.note is not None
        assert str(port) in server.note
        assert get(server, "/health/live")[0] == 200
        server.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.0.1", "example.org"])  # noqa: S104
def test_only_this_machine_may_ask(tmp_path: Path, host: str) -> None:
    (tmp_path / "headrace.yaml").write_text(PROJECT + f"http: {{host: {host}}}\n")
    with pytest.raises(ProjectError) as refused:
        load(tmp_path)
    assert refused.value.code == "not-loopback"


def test_letters_are_counted_once_per_file(engine_status: EngineStatus) -> None:
    folder = engine_status.letters._folder / "counted" / "orders"
    engine_status.letters.measure()
    assert engine_status.letters.of("counted") == 3
    pq.write_table(pa.table({"reason": ["malformed"]}), folder / "b.parquet")
    engine_status.letters.measure()
    assert engine_status.letters.counts["counted"] == {"malformed": 3, "no-event-time": 1}
    (folder / "a.parquet").unlink()
    engine_status.letters.measure()
    assert engine_status.letters.of("counted") == 1
    assert engine_status.letters.per_minute() is not None


def test_a_stream_that_is_idle_and_read_to_its_end_gets_a_heartbeat(tmp_path: Path) -> None:
    text = PROJECT.replace("event_time: at}\n  visits", "event_time: {column: at, idle: 30s}}\n  visits", 1)
    (tmp_path / "headrace.yaml").write_text(text)
    project = load(tmp_path)
    state = StateDir(Path(project.context.state))
    run = FlowRun(make_plan(project, ["counted"]).flows[0])
    run.mark_running()
    meter = LagMeter("shop", project.context, state, [run], Notes())
    run.caught_up, run.since = True, datetime.now(UTC) - timedelta(seconds=10)
    meter.measure()
    assert not heartbeat_file(state, "counted", "orders").exists(), "not idle for long enough"
    run.since = datetime.now(UTC) - timedelta(minutes=5)
    run.caught_up = False
    meter.measure()
    assert not heartbeat_file(state, "counted", "orders").exists(), "there is more to read"
    run.caught_up = True
    meter.measure()
    written = int(heartbeat_file(state, "counted", "orders").read_text().split()[0]) / 1000
    assert abs(datetime.now(UTC).timestamp() - 30 - written) < 20
    assert not heartbeat_file(state, "counted", "visits").exists(), "it has no `idle`"
    meter.close()


def names_of(text: str) -> set[str]:
    """Names of metrics in an expression or a document, without what histograms add."""
    found = set(re.findall(r"\bheadrace_[a-z_]+", text))
    histogram = re.compile(r"^(headrace_(?:batch_duration|step_latency)_seconds)_(bucket|sum|count)$")
    return {histogram.sub(r"\1", name) for name in found}


def known_names(server: StatusServer) -> set[str]:
    text = get(server, "/metrics")[1]
    return {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE") and "_created" not in line}


def test_the_dashboard_and_the_alerts_name_only_metrics_that_there_are(server: StatusServer) -> None:
    known = known_names(server)
    dashboard = json.loads((OPS / "grafana-dashboard.json").read_text(encoding="utf-8"))
    asked = {name for panel in dashboard["panels"] for one in panel["targets"] for name in names_of(one["expr"])}
    assert asked - known == set()
    assert len(asked) > 12
    assert names_of((OPS / "prometheus-alerts.yml").read_text(encoding="utf-8")) - known == set()
    assert (
        known - asked - {"headrace_engine_info", "headrace_watermark_timestamp_seconds", "headrace_batches_total"}
        == set()
    )


@pytest.fixture
def promtool() -> str:
    problem = Prometheus.problem()
    tool = shutil.which("promtool")
    if problem is not None or tool is None:
        from tests.conftest import unavailable

        unavailable(problem or ProjectError("service-unavailable", "prometheus: no 'promtool' on the PATH"))
    return str(tool)


@pytest.mark.service
def test_prometheus_takes_the_metrics_and_the_rules(server: StatusServer, promtool: str) -> None:
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=get(server, "/metrics")[1], text=True, capture_output=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    subprocess.run([promtool, "check", "rules", str(OPS / "prometheus-alerts.yml")], check=True)
    subprocess.run([promtool, "test", "rules", str(OPS / "prometheus-alerts.test.yml")], check=True)


@pytest.mark.service
def test_a_real_prometheus_reads_an_engine(server: StatusServer, promtool: str) -> None:
    target = server.address.removeprefix("http://")
    with Prometheus(targets=(target,), rules=(str(OPS / "prometheus-alerts.yml"),)) as prometheus:
        query = "/api/v1/query?query=headrace_rows_in_total"
        deadline, found = time.monotonic() + 120, []
        while not found and time.monotonic() < deadline:
            answer = http_get(prometheus.port, query)
            found = json.loads(answer[1])["data"]["result"] if answer and answer[0] == 200 else []
            time.sleep(0.1)
        values = {one["metric"]["flow"]: one["value"][1] for one in found}
        assert values == {"counted": "100", "plain": "0"}
        rules = json.loads((http_get(prometheus.port, "/api/v1/rules") or (0, b"{}"))[1])
        assert len(rules["data"]["groups"][0]["rules"]) == 9
