"""Real servers for tests and development, each on free loopback ports: `with Kafka() as kafka: ...`."""

from collections.abc import Iterable

from headrace.core.errors import Exit, ProjectError, did_you_mean
from headrace.testing.services.clickhouse import ClickHouse
from headrace.testing.services.etcd import Etcd
from headrace.testing.services.influxdb import InfluxDB
from headrace.testing.services.installing import install
from headrace.testing.services.kafka import Kafka
from headrace.testing.services.mariadb import MariaDB
from headrace.testing.services.opensearch import OpenSearch
from headrace.testing.services.postgres import Postgres
from headrace.testing.services.prometheus import Prometheus
from headrace.testing.services.redis import Redis
from headrace.testing.services.s3 import S3
from headrace.testing.services.service import Service
from headrace.testing.services.spark import Spark

KINDS: dict[str, type[Service]] = {
    service.kind: service
    for service in (
        *(Kafka, Postgres, MariaDB, Redis, InfluxDB, ClickHouse),
        *(OpenSearch, S3, Etcd, Prometheus, Spark),
    )
}


def named(kinds: Iterable[str]) -> list[type[Service]]:
    return [_named(kind) for kind in kinds]


def _named(kind: str) -> type[Service]:
    if kind not in KINDS:
        hint = did_you_mean(kind, KINDS, label="services")
        raise ProjectError("unknown-service", f"no service is called '{kind}'", hint=hint, exit_code=Exit.USAGE)
    return KINDS[kind]


__all__ = [
    "KINDS",
    "S3",
    "ClickHouse",
    "Etcd",
    "InfluxDB",
    "Kafka",
    "MariaDB",
    "OpenSearch",
    "Postgres",
    "Prometheus",
    "Redis",
    "Service",
    "Spark",
    "install",
    "named",
]
