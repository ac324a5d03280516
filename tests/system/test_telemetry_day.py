"""An operator's day with the telemetry application: a poison message, Redis away, late data, replay of a day, offsets
reset to a date, an archive that is written anew. Nothing is lost, nothing is doubled that should not be."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from apps.telemetry.generator import START, Generator, lookups
from tests.apps.telemetry.application import Application
from tests.conftest import unavailable
from tests.faults.test_telemetry_crashes import INPUTS, OUTCOMES, expected, violations
from tests.system.conftest import consume, produce

from headrace.cli.main import main
from headrace.core.errors import Exit, ProjectError
from headrace.sinks import archive
from headrace.sinks.archive.read import folders, located, read_parts
from headrace.testing.services import Redis
from headrace.testing.services.daemon import await_true
from headrace.testing.services.ports import choose

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.testing.services import Kafka

pytestmark = [pytest.mark.spark, pytest.mark.service]

DAY_MS = 86_400_000
FIRST, SECOND = "2026-01-01", "2026-01-02"
POISON = b'{"params": {"msgid": "poison"}, "events": [{"eid": '
Command = Callable[..., Any]


@pytest.fixture
def headrace(capsys: pytest.CaptureFixture[str]) -> Command:
    """A command that must succeed; its JSON."""

    def run(*arguments: object) -> Any:
        capsys.readouterr()
        done = main([*map(str, arguments), "--json"])
        captured = capsys.readouterr()
        assert done == Exit.OK, captured.err
        return json.loads(captured.out)

    return run


def archived(root: Path, topic: str, day: str | None = None) -> Counter[bytes]:
    """The lines of a topic, of one day or of all."""
    one = None if day is None else date.fromisoformat(day)
    found: Counter[bytes] = Counter()
    for name in folders(root, [topic], one, one):
        for _, lines in read_parts(root / name, list(located(root / name))):
            found.update(lines)
    return found


def mark(root: Path, topic: str, day: str) -> dict[str, Any]:
    return dict(json.loads((root / topic / f"dt={day}" / "_SUCCESS").read_text()))


def test_a_day_of_an_operator(
    tmp_path: Path, kafka: Kafka, spark: SparkSession, headrace: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = f"t{uuid.uuid4().hex[:8]}"
    names = [f"{env}.{topic}" for topic in (*INPUTS, *OUTCOMES)]
    for name in (*names, f"again-{env}"):
        kafka.create_topic(name, 1)
    monkeypatch.setenv("KAFKA_BROKERS", kafka.address)
    # on a busy machine days take their time to be finished, and here it is waited for
    monkeypatch.setattr(archive, "_LONGEST_WAIT", 300.0)
    app, root = Application(tmp_path, "kafka", env=env), tmp_path / "archive"
    given = ("-p", tmp_path, "--profile", "kafka", "--set", f"variables.env={env}")
    ingest, raw, unique = (f"{env}.telemetry.{name}" for name in ("ingest", "raw", "unique"))

    def held(topic: str) -> list[dict[str, Any]]:
        return [json.loads(one.value()) for one in consume(kafka, f"{env}.{topic}")]

    def archive_is_whole() -> None:
        for name in names:
            assert archived(root, name) == Counter(one.value() for one in consume(kafka, name)), name
        assert headrace("archive", "check", "archive", *given)["ok"]

    # a message that nobody can read comes among the others; it stops nothing
    batches = list(Generator(seed=1, repeats=0.05, faults=0.03).batches(25))
    sent = [batch.text.encode() for batch in batches]
    produce(kafka, ingest, [*sent[:9], POISON, *sent[9:]])
    app.run(spark, "extract")
    (poison,) = consume(kafka, f"{env}.telemetry.extractor.failed")
    assert poison.value() == POISON

    # Redis is away: what needs it waits, and goes on where it was when it is back
    app.overrides.append(f"variables.content_cache=redis://127.0.0.1:{choose(['away'], {})['away']}/5")
    with pytest.raises(ProjectError) as away:
        app.run(spark, "redact")
    assert away.value.exit_code == Exit.TRANSIENT
    if (problem := Redis.problem()) is not None:
        unavailable(problem)
    with Redis() as server:
        contents = redis.Redis(host="127.0.0.1", port=server.port, db=5)
        contents.mset({key: value for database, key, value in lookups() if database == 5})
        app.overrides.append(f"variables.content_cache=redis://{server.address}/5")
        app.run(spark, "redact", "preprocess", "archive")
        outcomes = {topic: held(topic) for topic in OUTCOMES if "extractor" not in topic}
        assert violations(expected(batches), outcomes) == []
        archive_is_whole()
        first = mark(root, unique, FIRST)
        assert (first["records"], first["late"]) == (len(outcomes["telemetry.unique"]), 0)

        # the next day some devices send what they have of the day before
        noon = datetime.now(UTC)
        late = list(Generator(seed=2, repeats=0).batches(5))
        batches += [*Generator(seed=3, repeats=0, start=START + DAY_MS).batches(5), *late]
        produce(kafka, ingest, [batch.text.encode() for batch in batches[25:]])
        app.run(spark, "extract", "redact", "preprocess", "archive")
        assert (
            violations(expected(batches), {topic: held(topic) for topic in OUTCOMES if "extractor" not in topic}) == []
        )
        archive_is_whole()
        again = mark(root, unique, FIRST)
        assert again["records"] - again["late"] == first["records"]
        assert again["late"] > 0
        assert first["files"].items() <= again["files"].items(), "files that were finished stay as they are"
        assert mark(root, unique, SECOND)["late"] == 0

        # the raw events of the first day once more, for somebody who has lost them
        wanted = ("--topic", raw, "--from", FIRST, "--to", FIRST, "--into", f"again-{env}", "--key", "mid")
        of_day = archived(root, raw, FIRST)
        assert headrace("archive", "replay", "archive", *given, *wanted)["sent"] == of_day.total()
        assert headrace("archive", "replay", "archive", *given, *wanted)["sent"] == 0
        assert await_true(lambda: Counter(one.value() for one in consume(kafka, f"again-{env}")) == of_day, 30), (
            "the day as it was"
        )

        # back to noon: the batches since then come again, and are known to be repeats
        before = {topic: held(topic) for topic in ("telemetry.unique", "telemetry.duplicate", "telemetry.raw")}
        moved = headrace("offsets", "reset", "extract", *given, "--to-datetime", noon.isoformat(), "--execute")
        assert moved["records_again"] == 10
        app.run(spark, "extract", "redact", "preprocess")
    assert len(held("telemetry.raw")) > len(before["telemetry.raw"])
    assert len(held("telemetry.duplicate")) > len(before["telemetry.duplicate"])
    assert held("telemetry.unique") == before["telemetry.unique"]

    # the archive is written anew from noon on, instead of what it has since then
    headrace("rewind", "archive", *given, "--to", noon.isoformat(), "--replace", "--yes")
    app.run(spark, "archive")
    archive_is_whole()
