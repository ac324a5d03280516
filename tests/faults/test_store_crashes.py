"""The flows that keep caches and tables over Kafka, Redis and PostgreSQL, their engine killed with -9: the
stores and topics hold what they hold after a run that nothing disturbed.

`HEADRACE_FAULTS=full` kills it twice.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import redis
from psycopg.rows import dict_row
from psycopg.sql import SQL, Identifier
from tests.apps.telemetry.application import Application
from tests.apps.telemetry.stores import ATTEMPT, CACHES, FLOWS, INPUT, fill, fill_tables, services, variables
from tests.conftest import unavailable
from tests.faults.scene import SHORT_LIVED, await_true
from tests.faults.test_telemetry_crashes import FULL, PATIENCE, start
from tests.system.conftest import consume, produce

from headrace.engine.letters.dead_letters import read_dead_letters
from headrace.engine.state.state import StateDir
from headrace.testing.services import Postgres, Redis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.testing.services import Kafka

# rows are in Redis and PostgreSQL, and no flow knows yet of this batch
DEATHS = ("after_sinks:0:user_cache", "after_sinks:1:user_cache") if FULL else ("after_sinks:1:user_cache",)
MADE = (
    "telemetry.assess.checked", "telemetry.assess.failed", "issue.certificate.request", "rating.checked",
    "rating.failedRating", "druid.cb.audit", "druid.cb.work.order.officer", "druid.cb.work.order.row",
    "telemetry.duplicate", "telemetry.failed",
)  # fmt: skip
TABLES = ("assessment_aggregator", "user_activity_agg", "ratings", "ratings_summary", "ratings_lookup")
BY_THE_CLOCK = ("created_on", "updated_on", "updated_date", "agg_last_updated")


@dataclass
class Place:
    """The application with topics and stores of its own."""

    app: Application
    env: str
    kafka: Kafka
    cache: Redis
    database: psycopg.Connection[dict[str, Any]]

    def topics(self) -> dict[str, Counter[str]]:
        found = {topic: [one.value() for one in consume(self.kafka, f"{self.env}.{topic}")] for topic in MADE}
        return {topic: Counter(_without_time(value) for value in values) for topic, values in found.items()}

    def caches(self) -> dict[tuple[int, str], Any]:
        found: dict[tuple[int, str], Any] = {}
        for number in CACHES.values():
            with redis.Redis(port=self.cache.port, db=number, decode_responses=True) as client:
                read = {"hash": client.hgetall, "set": client.smembers, "string": client.get}
                for key in client.scan_iter():
                    found[number, key] = _document(read[client.type(key)](key))
        return found

    def tables(self) -> dict[str, list[str]]:
        return {name.removeprefix(f"{self.env}_"): sorted(str(row) for row in self.rows(name))
                for name in (f"{self.env}_device_profile", *TABLES)}  # fmt: skip

    def rows(self, table: str) -> list[dict[str, Any]]:
        rows = self.database.execute(SQL("SELECT * FROM {}").format(Identifier(table)))
        return [{name: value for name, value in row.items() if name not in BY_THE_CLOCK} for row in rows]

    def letters(self) -> Counter[tuple[str, str]]:
        state = StateDir.of(self.app.project().context)
        return Counter((one["flow"], one["reason"]) for one in read_dead_letters(state.dead_letters).to_pylist())


def _document(value: Any) -> Any:
    """A text as the document that it is: the order of its keys means nothing."""
    try:
        return json.loads(value)
    except (TypeError, ValueError):
        return value


def _without_time(value: bytes) -> str:
    """A request for a certificate has the time of its batch."""
    document = _document(value)
    if isinstance(document, dict) and document.get("eid") == "BE_JOB_REQUEST":
        del document["ets"]
    return json.dumps(document, sort_keys=True) if isinstance(document, dict) else value.decode()


@contextmanager
def place(folder: Path, kafka: Kafka, server: Postgres, http: str) -> Iterator[Place]:
    """A place before anything has run, with all that will be read."""
    env = f"t{uuid.uuid4().hex[:8]}"
    for topic in (*INPUT, *MADE):
        kafka.create_topic(f"{env}.{topic}", 1)
    for topic, lines in INPUT.items():
        produce(kafka, f"{env}.{topic}", [one.encode() for one in lines])
    with psycopg.connect(server.env["POSTGRES_URL"], autocommit=True) as maintenance:
        maintenance.execute(SQL("CREATE DATABASE {}").format(Identifier(env)))
    url = server.env["POSTGRES_URL"].rpartition("/")[0] + f"/{env}"
    folder.mkdir()
    with Redis() as cache, psycopg.connect(url, autocommit=True, row_factory=dict_row) as database:
        fill(cache)
        fill_tables(database)
        places = {**variables(http, cache, url), "KAFKA_BROKERS": kafka.address}
        app = Application(folder, "kafka", **places, env=env, assessment_skip_missing="false")
        yield Place(app, env, kafka, cache, database)


@pytest.mark.spark
@pytest.mark.service
def test_stores_hold_what_they_hold_without_a_fault(tmp_path: Path, kafka: Kafka, spark: SparkSession) -> None:
    for problem in (Redis.problem(), Postgres.problem()):
        if problem is not None:
            unavailable(problem)
    with ExitStack() as stack:
        http, server = stack.enter_context(services()), stack.enter_context(Postgres())
        calm, hit = (stack.enter_context(place(tmp_path / name, kafka, server, http)) for name in ("calm", "hit"))
        conf = json.dumps({"spark.local.dir": str(tmp_path / "local"), **SHORT_LIVED})
        hit.app.overrides += ["defaults.max_records=6", f"spark.conf={conf}", "spark.master=local[2]"]
        for number, death in enumerate(DEATHS):
            life = start(hit.app, FLOWS, death, number)
            try:
                assert await_true(life.died, PATIENCE), life.tail()
                assert life.process.returncode == -9, life.tail()
            finally:
                if life.process.poll() is None:
                    life.kill()
        for one in (calm, hit):
            one.app.run(spark, *FLOWS)
        assert hit.caches() == calm.caches()
        assert hit.tables() == calm.tables()
        assert hit.topics() == calm.topics()
        assert hit.letters() == calm.letters()
        attempts = {
            (row["course_id"], row["content_id"]): row["grand_total"] for row in hit.rows("assessment_aggregator")
        }
        # nobody asks how many questions a content has; only the first has a later attempt
        content = ATTEMPT["contentId"]
        assert attempts == {
            (ATTEMPT["courseId"], content): "2.0/3.0",
            ("other", "short"): "1.33/2.0",
            ("other", "unknown"): "1.33/2.0",
            ("free", content): "0.5/1.0",
        }
