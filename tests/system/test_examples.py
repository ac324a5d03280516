"""Every example is a project that runs until it is caught up and gives the rows it says.

One is run by the command itself; with HEADRACE_EXAMPLES=command all of them are.
"""

from __future__ import annotations

import json
import shutil
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import redis
from tests.conftest import unavailable
from tests.system.conftest import RunShown, by_command, consume, headrace, produce

from headrace.engine.flows.flow import FlowStarter
from headrace.engine.state.state import StateDir
from headrace.plan.planner import make_plan
from headrace.project.loader import load
from headrace.testing.services import InfluxDB, Postgres, Redis

if TYPE_CHECKING:
    from headrace.testing.services import Kafka, OpenSearch, Service

pytestmark = pytest.mark.spark

EXAMPLES = Path(__file__).parents[2] / "examples"
ALONE = sorted({file.parents[1].name for file in EXAMPLES.glob("*/expected/*.json")})
# Its code comes from the project's folder, which only a process of its own has to find.
BY_COMMAND = {"python-function"}
Served = Callable[[Path, pytest.FixtureRequest], AbstractContextManager[dict[str, str]]]


def copied(name: str, folder: Path) -> Path:
    """The example without what was left of earlier runs."""
    leftovers = shutil.ignore_patterns("out", "lake", ".headrace")
    return Path(shutil.copytree(EXAMPLES / name, folder / name, ignore=leftovers))


def written(folder: Path) -> list[dict[str, Any]]:
    """The rows of a files sink."""
    return [json.loads(line) for file in folder.glob("*.json") for line in file.read_text().splitlines()]


def in_order(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


def started(stack: ExitStack, kind: type[Service]) -> Any:
    problem = kind.problem()
    if problem is not None:
        unavailable(problem)
    return stack.enter_context(kind())


@contextmanager
def with_postgres(data: Path, _request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    with ExitStack() as stack:
        server = started(stack, Postgres)
        with psycopg.connect(server.env["POSTGRES_URL"]) as connection:
            connection.execute((data / "customers.sql").read_bytes())
        yield server.env


@contextmanager
def with_redis(data: Path, _request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    with ExitStack() as stack:
        server = started(stack, Redis)
        client = redis.Redis.from_url(server.env["REDIS_URL"])
        for line in (data / "customers.redis").read_text().splitlines():
            client.execute_command(*line.split())
        yield server.env


@contextmanager
def with_opensearch(data: Path, request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    node: OpenSearch = request.getfixturevalue("opensearch")
    asked = urllib.request.Request(  # noqa: S310
        f"{node.env['OPENSEARCH_URL']}/_bulk?refresh=true",
        (data / "customers.ndjson").read_bytes(),
        {"Content-Type": "application/x-ndjson"},
    )
    with urllib.request.urlopen(asked, timeout=60) as answer:  # noqa: S310
        assert json.load(answer)["errors"] is False
    yield node.env


class Customers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    known = {"/customers/1": ("Asha", "gold"), "/customers/2": ("Budi", "basic")}  # noqa: RUF012

    def do_GET(self) -> None:
        name, tier = self.known.get(self.path, ("", ""))
        body = json.dumps({"customer": {"name": name}, "tier": tier}).encode()
        self.send_response(200 if name else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@contextmanager
def with_http(_data: Path, _request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Customers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield {"CUSTOMERS_URL": f"http://127.0.0.1:{server.server_port}"}
    finally:
        server.shutdown()
        server.server_close()


SERVED: dict[str, Served] = {
    "http-enrichment": with_http,
    "opensearch-enrichment": with_opensearch,
    "postgres-enrichment": with_postgres,
    "redis-enrichment": with_redis,
}


def named(names: Iterable[str]) -> list[Any]:
    """Examples to run, some of them by the command."""
    return [pytest.param(name, marks=[pytest.mark.command] if name in BY_COMMAND else []) for name in names]


def check(name: str, folder: Path, run_shown: RunShown) -> None:
    run_shown(folder)
    for expected in sorted((EXAMPLES / name / "expected").glob("*.json")):
        rows = written(folder / "out" / expected.stem)
        assert in_order(rows) == in_order(json.loads(expected.read_text())), expected.stem


@pytest.mark.parametrize("name", named(name for name in ALONE if name not in SERVED))
def test_example(name: str, tmp_path: Path, run_shown: RunShown) -> None:
    check(name, copied(name, tmp_path), run_shown)


@pytest.mark.service
@pytest.mark.parametrize("name", named(SERVED))
def test_enrichment(
    name: str,
    tmp_path: Path,
    run_shown: RunShown,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    folder = copied(name, tmp_path)
    with SERVED[name](folder / "data", request) as variables:
        for variable, value in variables.items():
            monkeypatch.setenv(variable, value)
        check(name, folder, run_shown)


@pytest.mark.service
def test_influx_tags(tmp_path: Path, run_shown: RunShown, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copied("influx-tags", tmp_path)
    with ExitStack() as stack:
        url = started(stack, InfluxDB).env["INFLUXDB_URL"]
        monkeypatch.setenv("INFLUXDB_URL", url)
        run_shown(folder)
        query = "db=example&q=SELECT%20*%20FROM%20bookings"
        with urllib.request.urlopen(f"{url}/query?{query}", timeout=60) as answer:  # noqa: S310
            (series,) = json.load(answer)["results"][0]["series"]
    points = [dict(zip(series["columns"], values, strict=True)) for values in series["values"]]
    assert in_order(points) == in_order(
        [
            {"time": "2026-03-01T08:01:00Z", "service": "RIDE", "area": "north", "bookings": 2, "amount": 7.5},
            {"time": "2026-03-01T08:01:00Z", "service": "FOOD", "area": "east lake", "bookings": 1, "amount": 2},
        ]
    )


@pytest.mark.service
def test_parquet_backfill(
    tmp_path: Path,
    run_shown: RunShown,
    kafka: Kafka,
    topic: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, orders = copied("parquet-backfill", tmp_path), topic()
    for day in (1, 2):
        table = pa.table(
            {
                "order_number": [f"{day}-{n}" for n in range(3)],
                "amount": [1.0, 2.0, 3.0],
                "ordered_at": pa.array([datetime(2026, 3, day, 12, n, tzinfo=UTC) for n in range(3)]),
            }
        )
        (folder / "history" / f"dt=2026-03-0{day}").mkdir(parents=True)
        pq.write_table(table, folder / "history" / f"dt=2026-03-0{day}" / "orders.parquet")
    times = ["2026-03-02T23:00:00Z", "2026-03-03T08:00:00Z", "2026-03-03T09:00:00Z", "2026-03-05T00:00:00Z"]
    produce(kafka, orders, [json.dumps({"order_number": t, "amount": 10.0, "ordered_at": t}).encode() for t in times])
    monkeypatch.setenv("KAFKA_BROKERS", kafka.address)
    monkeypatch.setenv("ORDERS_TOPIC", orders)
    run_shown(folder)
    assert in_order(written(folder / "out" / "orders_per_day")) == in_order(
        [
            {"day": "2026-03-01T00:00:00.000Z", "orders": 3, "amount": 6.0},
            {"day": "2026-03-02T00:00:00.000Z", "orders": 3, "amount": 6.0},
            {"day": "2026-03-03T00:00:00.000Z", "orders": 2, "amount": 20.0},
        ]
    )


@contextmanager
def started_by_command(folder: Path) -> Iterator[Callable[[], str | None]]:
    """The project while the block runs; it does not end by itself. Gives a look at why it has ended all the same."""
    with (folder / "said").open("w+") as said, headrace("run", folder, stdout=said, stderr=said) as running:
        try:
            yield lambda: None if running.poll() is None else (folder / "said").read_text()
            running.send_signal(signal.SIGINT)
            assert running.wait(300) == 0, (folder / "said").read_text()
        finally:
            running.kill()


@contextmanager
def started_in_session(folder: Path, request: pytest.FixtureRequest) -> Iterator[Callable[[], str | None]]:
    """The same by the engine in the shared session."""
    project = load(folder)
    starter = FlowStarter(project, StateDir(Path(project.context.state)), request.getfixturevalue("spark"))
    query = starter.start(make_plan(project).flow("alarms"))
    try:
        yield lambda: None if query.isActive else str(query.exception())
    finally:
        query.stop()


@pytest.mark.service
def test_real_time_filter(
    tmp_path: Path,
    kafka: Kafka,
    topic: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    names = {"KAFKA_BROKERS": kafka.address, "READINGS_TOPIC": topic(), "ALARMS_TOPIC": topic()}
    for variable, value in names.items():
        monkeypatch.setenv(variable, value)
    folder = copied("real-time-filter", tmp_path)
    readings = [{"sensor": f"s{n}", "celsius": 80.0 + n} for n in range(3)]
    running = started_by_command(folder) if by_command(request) else started_in_session(folder, request)
    found: list[Any] = []
    with running as ended:
        produce(kafka, names["READINGS_TOPIC"], [json.dumps(one).encode() for one in readings])
        until = time.monotonic() + 600
        while len(found) < 2:
            assert ended() is None, ended()
            assert time.monotonic() < until, "no alarm in ten minutes"
            found = consume(kafka, names["ALARMS_TOPIC"])
    assert in_order([json.loads(message.value()) for message in found]) == in_order(
        [
            {"sensor": "s1", "celsius": 81.0, "fahrenheit": 177.8, "kind": "too hot"},
            {"sensor": "s2", "celsius": 82.0, "fahrenheit": 179.6, "kind": "too hot"},
        ]
    )
