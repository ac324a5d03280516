"""The test kit: run a project or a view on rows of a test, with a movable clock, or against real local services.

* `ProjectHarness` runs the flows of a project; its streams read lists and its flows write lists.
* `ViewHarness` applies changes to tables, and compares a view with Spark's batch result.
* `ListSource` and `ListSink` replace a source and a sink; `Clock` gives event times.
* `Kafka`, `Postgres` and the other services start real servers on loopback ports: `with Kafka() as kafka: ...`.

    >>> from headrace.testing import Clock, ListSource
    >>> clock = Clock("2026-01-01T12:00:00+00:00")
    >>> clock.advance("10s").isoformat()
    '2026-01-01T12:00:10+00:00'
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     orders = ListSource(folder=folder)
    ...     orders.feed([b'{"id": 1}', b'{"id": 2}'])
    ...     orders.fed
    2

These names are the public API of the test kit; a name is imported at first use. The modules are internal.
"""

from typing import TYPE_CHECKING

from headrace.core.lazy import lazy_names

if TYPE_CHECKING:
    from headrace.testing.clock import Clock
    from headrace.testing.harness import ProjectHarness
    from headrace.testing.lists import ListSink, ListSource
    from headrace.testing.services import (
        S3,
        ClickHouse,
        Etcd,
        InfluxDB,
        Kafka,
        MariaDB,
        OpenSearch,
        Postgres,
        Prometheus,
        Redis,
        Spark,
    )
    from headrace.testing.views import ViewHarness
else:
    _SERVICES = (
        "ClickHouse", "Etcd", "InfluxDB", "Kafka", "MariaDB", "OpenSearch", "Postgres", "Prometheus", "Redis", "S3",
        "Spark",
    )  # fmt: skip
    __getattr__ = lazy_names(
        __name__,
        {
            "Clock": "headrace.testing.clock",
            "ListSink": "headrace.testing.lists",
            "ListSource": "headrace.testing.lists",
            "ProjectHarness": "headrace.testing.harness",
            "ViewHarness": "headrace.testing.views",
            **dict.fromkeys(_SERVICES, "headrace.testing.services"),
        },
    )

__all__ = [
    "S3",
    "ClickHouse",
    "Clock",
    "Etcd",
    "InfluxDB",
    "Kafka",
    "ListSink",
    "ListSource",
    "MariaDB",
    "OpenSearch",
    "Postgres",
    "ProjectHarness",
    "Prometheus",
    "Redis",
    "Spark",
    "ViewHarness",
]
