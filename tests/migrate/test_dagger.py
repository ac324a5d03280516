"""Dagger jobs as projects: what is carried over, that it is right, and what is listed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as settings_
from hypothesis import strategies as st
from tests.migrate.conftest import JOBS

from headrace.cli.main import main
from headrace.cli.terminal.folders import write_files
from headrace.core.errors import ProjectError
from headrace.migrate.dagger import migrate
from headrace.migrate.draft import Draft
from headrace.migrate.patterns import json_template, parameters, template
from headrace.migrate.properties import read_properties
from headrace.plan.planner import make_plan
from headrace.project.loader import load

Migrated = Callable[[str], tuple[Draft, Path]]
ENVIRONMENT = {
    "INFLUX_PASSWORD": "a",
    "BOOKING_KAFKA_PASSWORD": "b",
    "ES_0_PASSWORD": "c",
}


def kept(draft: Draft, kind: str) -> dict[str, str]:
    return {note.key: note.message for note in draft.notes if note.kind == kind}


def document(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((folder / "headrace.yaml").read_text())
    return found


JOB_NAMES = ["tumbling_count", "interval_join", "distance", "deduplication", "elasticsearch"]


@pytest.mark.parametrize("job", JOB_NAMES)
def test_each_of_daggers_examples_becomes_a_project_that_can_be_planned(migrated: Migrated, job: str) -> None:
    draft, folder = migrated(job)
    plan = make_plan(load(folder, environment=ENVIRONMENT))
    assert len(plan.flows) == 1
    written = "".join(path.read_text() for path in folder.rglob("*.*") if path.suffix in (".yaml", ".md", ".sql"))
    assert "top-secret" not in written
    assert all(note.message for note in draft.notes)


def test_a_tumbling_count(migrated: Migrated) -> None:
    draft, folder = migrated("tumbling_count")
    made = document(folder)
    assert made["streams"]["booking"] == {
        "source": {
            "type": "kafka",
            "brokers": ["localhost:9092"],
            "topic": "booking-log",
            "start": "latest",
            "group_prefix": "dagger-0001",
        },
        "format": {"type": "protobuf", "message": "shop.v1.BookingLog", "descriptors": "schemas/messages.desc"},
        "event_time": {"column": "event_timestamp", "watermark": "1s"},
    }
    flow = made["flows"]["booking_count"]
    assert flow["trigger"] == "2s"
    assert flow["sinks"][0]["password"] == "${secret:INFLUX_PASSWORD}"
    assert kept(draft, "not_carried") == {}
    plan = make_plan(load(folder, environment=ENVIRONMENT)).flow("booking_count")
    [stream] = plan.streams()
    assert stream.columns == ("service_type", "event_timestamp")
    assert stream.late is not None
    assert stream.late.size == 30_000_000


def test_an_interval_join(migrated: Migrated) -> None:
    draft, folder = migrated("interval_join")
    made = document(folder)
    bookings, payments = made["streams"]["booking"], made["streams"]["payment_log"]
    assert bookings["source"]["topic"] == ["booking-log", "booking-log-v2"]
    assert bookings["source"]["security"] == {
        "sasl": "SCRAM-SHA-512",
        "username": "dagger",
        "password": "${secret:BOOKING_KAFKA_PASSWORD}",
    }
    assert payments["source"]["pattern"] == "payment-.*"
    assert payments["source"]["options"] == {"fetch.min.bytes": "1000"}
    assert payments["event_time"]["column"] == "paid_at"
    sink = made["flows"]["booking_payments"]["sinks"][0]
    assert sink["key"] == ["order_number"]
    assert sink["key_format"]["message"] == "shop.v1.PaidBookingKey"
    assert sink["options"] == {"linger.ms": "20"}
    assert "JOIN payment_log p" in (folder / "sql" / "booking_payments.sql").read_text()
    assert "payment_log" in kept(draft, "check")["INPUT_SCHEMA_TABLE"]
    assert set(draft.secrets) == {"BOOKING_KAFKA_PASSWORD"}


def test_a_distance_in_a_window(migrated: Migrated) -> None:
    draft, folder = migrated("distance")
    made = document(folder)
    assert made["streams"]["data_stream"]["event_time"]["alias"] == "rt"
    assert made["functions"]["lookups"]["path"] == "gs://lookups"
    assert set(kept(draft, "not_carried")) == {"UDF_DART_GCS_PROJECT_ID", "PYTHON_UDF_ENABLE", "PYTHON_UDF_CONFIG"}


def test_deduplication_for_an_hour(migrated: Migrated) -> None:
    draft, folder = migrated("deduplication")
    [step] = document(folder)["flows"]["unique_orders"]["after"]
    assert step == {"type": "deduplicate", "key": ["order_number"], "ttl": "3600s"}
    assert document(folder)["streams"]["booking"]["format"] == {"type": "json", "json_schema": "schemas/booking.json"}
    lost = kept(draft, "not_carried")
    assert set(lost) == {
        "PROCESSOR_PREPROCESSOR_CONFIG.table_transformers[0].transformers[0]",
        "PROCESSOR_LONGBOW_GCP_PROJECT_ID",
    }
    assert "com.own.MyTransformer" in next(iter(lost.values()))


def test_a_lookup_and_the_time(migrated: Migrated) -> None:
    draft, folder = migrated("elasticsearch")
    lookup, now, outputs = document(folder)["flows"]["enriched"]["after"]
    assert lookup == {
        "type": "elasticsearch",
        "url": "http://localhost:9200",
        "index": "customers",
        "id": "{customer_id}",
        "username": "elastic",
        "password": "${secret:ES_0_PASSWORD}",
        "timeout": "5s",
        "capacity": 30,
        "on_error": "null",
        "columns": {"customer_name": {"path": "$.name", "type": "string"}},
    }
    assert now == {"type": "now", "column": "event_timestamp"}
    assert outputs["columns"]["*"] == "*"
    assert kept(draft, "not_carried") == {}
    assert draft.secrets == {"ES_0_PASSWORD": "PROCESSOR_POSTPROCESSOR_CONFIG.external_source.es[0].password"}


def test_without_descriptors_it_says_what_to_fill_in(tmp_path: Path) -> None:
    draft = migrate(JOBS / "tumbling_count.properties")
    assert draft.document["streams"]["booking"]["event_time"]["column"] == "event_timestamp"
    assert draft.document["streams"]["booking"]["format"]["descriptors"] == "messages.desc"
    told = kept(draft, "check")
    assert "field 5" in told["INPUT_SCHEMA_EVENT_TIMESTAMP_FIELD_INDEX"]
    assert "--descriptors" in told["SCHEMA_REGISTRY_STENCIL_URLS"]


def test_a_registry_is_asked_as_dagger_asks_it(tmp_path: Path) -> None:
    file = tmp_path / "job.properties"
    file.write_text(
        settings(
            STREAMS='[{"INPUT_SCHEMA_TABLE": "t", "INPUT_SCHEMA_PROTO_CLASS": "a.B", "SOURCE_KAFKA_TOPIC_NAMES": "x", '
            '"SOURCE_KAFKA_CONSUMER_CONFIG_BOOTSTRAP_SERVERS": "localhost:9092"}]',
            SCHEMA_REGISTRY_STENCIL_URLS="http://127.0.0.1:1/a,http://127.0.0.1:1/b",
            SCHEMA_REGISTRY_STENCIL_FETCH_HEADERS='[{"name": "Authorization", "value": "top-secret"}]',
            SCHEMA_REGISTRY_STENCIL_FETCH_TIMEOUT_MS="5000",
            SCHEMA_REGISTRY_STENCIL_CACHE_TTL_MS="60000",
            SCHEMA_REGISTRY_STENCIL_REFRESH_STRATEGY="VERSION_BASED_REFRESH",
        )
    )
    draft = migrate(file)
    assert draft.document["streams"]["t"]["format"]["descriptors"] == {
        "url": ["http://127.0.0.1:1/a", "http://127.0.0.1:1/b"],
        "headers": {"Authorization": "${secret:HEADER_AUTHORIZATION}"},
        "timeout": "5s",
        "refresh": "60s",
        "version": "newest",
    }
    write_files(tmp_path / "job", draft.files)
    load(tmp_path / "job", environment={"HEADER_AUTHORIZATION": "x"})


def settings(**changes: str) -> str:
    given = {
        "FLINK_SQL_QUERY": "SELECT a FROM t",
        "STREAMS": '[{"INPUT_SCHEMA_TABLE": "t", "INPUT_DATATYPE": "JSON", "SOURCE_KAFKA_TOPIC_NAMES": "x"}]',
        "SINK_TYPE": "log",
        **changes,
    }
    return "\n".join(f"{key}={value}" for key, value in given.items())


TRANSFORMERS = [
    ("HashTransformer", {"maskColumns": ["a", "b.c"]}, {"type": "hash", "columns": ["a", "b.c"]}),
    (
        "SQLTransformer",
        {"sqlQuery": "SELECT a, 1 AS b FROM data_stream"},
        {"type": "sql", "sql": "SELECT a, 1 AS b FROM rows"},
    ),
    ("ClearColumnTransformer", {"targetColumnName": "a"}, {"type": "clear", "columns": ["a"]}),
    (
        "FeatureTransformer",
        {"keyColumnName": "a", "valueColumnName": "b"},
        {"type": "feature", "column": "b", "features": [{"key": "a", "value": "b"}]},
    ),
    (
        "FeatureWithTypeTransformer",
        {"outputColumnName": "o", "data": [{"keyColumnName": "a", "valueColumnName": "b", "type": "LongType"}]},
        {"type": "feature", "features": [{"key": "a", "value": "b", "type": "int64"}], "column": "o"},
    ),
]


@pytest.mark.parametrize(("java", "arguments", "step"), TRANSFORMERS)
def test_transformers_before_and_after(tmp_path: Path, java: str, arguments: Any, step: Any) -> None:
    java_class = f"io.odpf.dagger.functions.transformers.{java}"
    one = {"transformation_class": java_class, "transformation_arguments": arguments}
    file = tmp_path / "job.properties"
    file.write_text(
        settings(
            PROCESSOR_PREPROCESSOR_ENABLE="true",
            PROCESSOR_PREPROCESSOR_CONFIG=json.dumps(
                {"table_transformers": [{"table_name": "t", "transformers": [one]}, {"table_name": "u"}]}
            ),
            PROCESSOR_POSTPROCESSOR_ENABLE="TRUE",
            PROCESSOR_POSTPROCESSOR_CONFIG=json.dumps({"transformers": [one]}),
        )
    )
    draft = migrate(file)
    flow = draft.document["flows"]["job"]
    assert flow["before"] == {"t": [step]}
    assert flow["after"] == [step]
    assert kept(draft, "not_carried") == {
        "PROCESSOR_PREPROCESSOR_CONFIG.table_transformers[1]": "table 'u' has no stream"
    }


def test_parquet_bigquery_and_unknown_settings_are_listed(tmp_path: Path) -> None:
    stream = {
        "INPUT_SCHEMA_TABLE": "t",
        "INPUT_SCHEMA_PROTO_CLASS": "a.B",
        "INPUT_SCHEMA_EVENT_TIMESTAMP_FIELD_INDEX": "1",
        "SOURCE_DETAILS": [{"SOURCE_TYPE": "BOUNDED", "SOURCE_NAME": "PARQUET_SOURCE"}],
        "SOURCE_PARQUET_FILE_PATHS": ["gs://a/t/", "gs://b/t/"],
        "SOURCE_PARQUET_FILE_DATE_RANGE": "2026-01-01T00:00:00Z,2026-01-02T00:00:00Z",
        "SOURCE_NEW_THING": "1",
    }
    file = tmp_path / "job.properties"
    file.write_text(
        settings(
            STREAMS=json.dumps([stream]),
            SINK_TYPE="bigquery",
            SINK_BIGQUERY_TABLE_NAME="x",
            FLINK_SQL_QUERY="SELECT a, longbow_key FROM t",
            WHATEVER="1",
        )
    )
    draft = migrate(file)
    assert draft.document["streams"]["t"]["source"]["path"] == "gs://a/t/"
    assert draft.document["flows"]["job"]["sinks"] == [{"type": "lake", "path": "lake/job"}]
    assert set(kept(draft, "not_carried")) == {
        "SOURCE_PARQUET_FILE_PATHS",
        "SOURCE_PARQUET_FILE_DATE_RANGE",
        "STREAMS[0].SOURCE_NEW_THING",
        "FLINK_SQL_QUERY",
        "SINK_TYPE",
        "SINK_BIGQUERY_TABLE_NAME",
        "WHATEVER",
    }


def http(**changes: Any) -> dict[str, Any]:
    return {
        "endpoint": "http://127.0.0.1:8000/customers/",
        "verb": "post",
        "request_pattern": '{"id": "%s", "n": %s}',
        "request_variables": "customer_id, n",
        "header_pattern": '{"X-Tenant": "%s"}',
        "header_variables": "tenant",
        "headers": {"Authorization": "Bearer top-secret", "Accept": "application/json"},
        "stream_timeout": "5000",
        "capacity": "30",
        "fail_on_errors": "false",
        "exclude_fail_on_errors_code_range": "400,404-499",
        "output_mapping": {"name": {"path": "$.name"}},
    } | changes


def after(tmp_path: Path, **config: Any) -> tuple[Draft, list[dict[str, Any]]]:
    file = tmp_path / "job.properties"
    file.write_text(settings(PROCESSOR_POSTPROCESSOR_ENABLE="true", PROCESSOR_POSTPROCESSOR_CONFIG=json.dumps(config)))
    draft = migrate(file)
    return draft, draft.document["flows"]["job"].get("after", [])


def test_http_with_patterns(tmp_path: Path) -> None:
    get = http(verb="GET", request_pattern="%s/orders", request_variables="customer_id")
    draft, (first, second, outputs) = after(tmp_path, external_source={"http": [http(), get]})
    assert first == {
        "type": "http",
        "method": "POST",
        "url": "http://127.0.0.1:8000/customers/",
        "body": '{"id": "{customer_id}", "n": {n}}',
        "headers": {
            "Authorization": "${secret:HEADER_AUTHORIZATION}",
            "Accept": "application/json",
            "X-Tenant": "{tenant}",
        },
        "exclude": "400,404-499",
        "timeout": "5s",
        "capacity": 30,
        "on_error": "null",
        "columns": {"name": {"path": "$.name", "type": "string"}},
    }
    assert second["url"] == "http://127.0.0.1:8000/customers/{customer_id}/orders"
    assert outputs == {"type": "column", "columns": {"name": "name"}, "keep": "none"}
    assert "top-secret" not in str(draft.files)


def test_postgres_with_parameters(tmp_path: Path) -> None:
    given = {
        "host": "localhost",
        "port": "5432",
        "user": "u",
        "password": "top-secret",
        "database": "shop",
        "capacity": "30",
        "query_pattern": "select email from customers where name like '%s'",
        "query_variables": "customer_id",
        "output_mapping": {"customer_email": "email"},
        "fail_on_errors": "true",
    }
    _, (step, _outputs) = after(tmp_path, external_source={"pg": [given]})
    assert step["query"] == "select email from customers where name like :customer_id"
    assert step["url"] == "postgresql://localhost:5432/shop"
    assert step["password"] == "${secret:PG_0_PASSWORD}"
    assert step["on_error"] == "fail"
    assert step["columns"] == {"customer_email": {"path": "email", "type": "string"}}


def test_grpc_with_a_json_request(tmp_path: Path) -> None:
    given = {
        "endpoint": "localhost",
        "service_port": "8000",
        "request_pattern": "{'id': '%s', 'kind': 'a'}",
        "request_variables": "customer_id",
        "grpc_method_url": "shop.v1.Customers/Get",
        "headers": {"authorization": "top-secret"},
        "output_mapping": {"name": {"path": "$.name"}},
    }
    draft, (step, _outputs) = after(tmp_path, external_source={"grpc": [given]})
    assert step["url"] == "localhost:8000"
    assert step["request"] == '{"id": "{customer_id}", "kind": "a"}'
    assert step["metadata"] == {"authorization": "${secret:HEADER_AUTHORIZATION}"}
    assert "schemas/messages.desc" in next(iter(kept(draft, "check").values()))


def test_what_is_wrong_with_a_step_is_listed_and_the_rest_is_carried_over(tmp_path: Path) -> None:
    draft, steps = after(
        tmp_path,
        external_source={"http": [http(capacity="0"), http(request_variables="a"), {"verb": "GET"}], "soap": []},
        internal_source=[
            {"output_field": "c", "type": "constant", "value": "x"},
            {"output_field": "d", "type": "function", "value": "NEXT_YEAR"},
            {"output_field": "e", "type": "sql", "value": "a"},
        ],
        transformers=[
            {"transformation_class": "a.InvalidRecordFilterTransformer"},
            {"transformation_class": "a.HashTransformer"},
        ],
    )
    assert steps == [
        {"type": "constant", "values": {"c": "x"}},
        {"type": "column", "columns": {"c": "c", "e": "a"}, "keep": "none"},
    ]
    place = "PROCESSOR_POSTPROCESSOR_CONFIG"
    assert set(kept(draft, "not_carried")) == {
        f"{place}.external_source.http[0]",
        f"{place}.external_source.http[1]",
        f"{place}.external_source.http[2]",
        f"{place}.internal_source[1]",
        f"{place}.transformers[1]",
        f"{place}.soap",
    }
    assert draft.secrets == {}


def test_a_row_as_json(tmp_path: Path) -> None:
    function = {"type": "function", "value": "JSON_PAYLOAD"}
    message = {"internal_processor_config": {"schema_proto_class": "shop.v1.BookingLog"}}
    _, (plain, typed, _outputs) = after(
        tmp_path,
        internal_source=[{**function, "output_field": "a"}, {**function, **message, "output_field": "b"}],
    )
    assert plain == {"type": "json_payload", "column": "a"}
    assert typed == {
        "type": "json_payload",
        "column": "b",
        "message": "shop.v1.BookingLog",
        "descriptors": "schemas/messages.desc",
    }


def test_parquet_and_then_kafka_is_a_backfill(tmp_path: Path) -> None:
    stream = {
        "INPUT_SCHEMA_TABLE": "t",
        "INPUT_DATATYPE": "JSON",
        "INPUT_SCHEMA_JSON_EVENT_TIMESTAMP_FIELD_NAME": "at",
        "SOURCE_DETAILS": [{"SOURCE_NAME": "PARQUET_SOURCE"}, {"SOURCE_NAME": "KAFKA_CONSUMER"}],
        "SOURCE_PARQUET_FILE_PATHS": ["history/a", "history/b"],
        "SOURCE_PARQUET_FILE_DATE_RANGE": "2026-01-01,2026-01-31",
        "SOURCE_KAFKA_TOPIC_NAMES": "x",
        "SOURCE_KAFKA_CONSUMER_CONFIG_BOOTSTRAP_SERVERS": "localhost:9092",
    }
    file = tmp_path / "job.properties"
    file.write_text(settings(STREAMS=json.dumps([stream])))
    draft = migrate(file)
    assert draft.document["streams"]["t"]["backfill"] == {
        "files": ["history/a", "history/b"],
        "dates": "2026-01-01,2026-01-31",
        "until": "2026-02-01",
    }
    assert "2026-02-01" in kept(draft, "check")["SOURCE_PARQUET_FILE_DATE_RANGE"]
    del stream["SOURCE_PARQUET_FILE_DATE_RANGE"]
    file.write_text(settings(STREAMS=json.dumps([stream])))
    assert "backfill" in kept(migrate(file), "not_carried")["SOURCE_DETAILS"]


PROPERTIES = [
    ("A=1\nB = two words \n# c\n! d\n\nC:3", {"A": "1", "B": "two words", "C": "3"}),
    ("A=x\\\n  y\\\\\nB=1", {"A": "xy\\", "B": "1"}),
    ("A=http\\://h\\:1\\=b\nB=caf\\u00e9\\ttab", {"A": "http://h:1=b", "B": "café\ttab"}),
    ("export A='it''s'\nexport B='it'\\''s'", {"A": "its", "B": "it's"}),
    ('A="say \\"hi\\" \\$1 \\d"\nB="two\nlines"', {"A": 'say "hi" $1 \\d', "B": "two\nlines"}),
    ('A=[\n {"b": "]\\n"}\n]\nC={}', {"A": '[\n {"b": "]\\n"}\n]', "C": "{}"}),
    ("A=\nB=", {"A": "", "B": ""}),
    ("A=1\r\nB=2\r\n", {"A": "1", "B": "2"}),
]


@pytest.mark.parametrize(("text", "expected"), PROPERTIES)
def test_files_are_read_as_java_and_shells_read_them(text: str, expected: dict[str, str]) -> None:
    assert read_properties(text, "f") == expected


@settings_(deadline=None)
@given(st.dictionaries(st.sampled_from(["A", "SINK_TYPE", "x.y"]), st.text(max_size=30)))
def test_what_a_shell_quotes_comes_back(values: dict[str, str]) -> None:
    def in_shell(text: str) -> str:
        return "'" + text.replace("'", "'\\''") + "'"

    text = "".join(f"export {key}={in_shell(value)}\n" for key, value in values.items())
    assert read_properties(text, "f") == values


@pytest.mark.parametrize("text", ["A='open", "no setting here", 'A="open\\"'])
def test_what_is_no_setting_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(ProjectError) as refused:
        read_properties("# first\n" + text, "job.env")
    assert (refused.value.code, str(refused.value.where)) == ("migrate-unreadable", "job.env:2")


def test_java_patterns_become_templates() -> None:
    assert template("/a/%s/b/%d%%", "x, y", "k") == "/a/{x}/b/{y}%"
    assert template('{"key": "%s", "n": {"m": %2$s}}', "x,y", "k") == '{{"key": "{x}", "n": {{"m": {y}}}}}'
    assert json_template("{'a': '%s'}", "x", "k") == '{"a": "{x}"}'
    query = "SELECT a FROM t WHERE b = '%s' AND c LIKE '%s%%' AND d = %s AND e = '{}' AND f = ''"
    assert parameters(query, "x, y, z.w", "k") == (
        "SELECT a FROM t WHERE b = :x AND c LIKE :y || '%' AND d = :\"z.w\" AND e = '{}' AND f = ''"
    )
    with pytest.raises(ProjectError, match="more placeholders"):
        template("%s %s", "x", "k")


def test_the_command(tmp_path: Path, descriptors: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job, folder = str(JOBS / "tumbling_count.properties"), tmp_path / "out"
    arguments = ["migrate", "dagger", job, "-o", str(folder), "--descriptors", str(descriptors)]
    assert main([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["files"] == ["MIGRATION.md", "headrace.yaml", "schemas/messages.desc", "sql/booking_count.sql"]
    assert told["secrets"] == [{"name": "INFLUX_PASSWORD", "key": "SINK_INFLUX_PASSWORD"}]
    assert {note["kind"] for note in told["notes"]} == {"check", "not_needed"}
    assert main(arguments) == 5
    assert "folder-not-empty" in capsys.readouterr().err
    assert main([*arguments, "--force"]) == 0
    out, err = capsys.readouterr()
    assert f"wrote {folder / 'headrace.yaml'}" in out
    assert "secret: set INFLUX_PASSWORD" in err
    assert "please look: SOURCE_KAFKA_CONSUMER_CONFIG_GROUP_ID" in err
    assert main(["migrate", "dagger", str(tmp_path / "none")]) == 4
    assert "missing-file" in capsys.readouterr().err
