"""A log on a real object store: writers who race, a reader, a cut."""

from __future__ import annotations

import threading
import uuid

import pytest
from tests.log.kit import ORDERS, changes, held

from headrace.core.files.objects import ObjectPath
from headrace.log.folder import LogFolder
from headrace.log.log import LogCutError, Mark
from headrace.testing.services import S3

pytestmark = pytest.mark.service


def test_writers_who_race_on_a_store_each_get_a_position(s3: S3) -> None:
    bucket = f"log-{uuid.uuid4().hex[:8]}"
    s3.make_bucket(bucket)
    root = ObjectPath.of(f"s3://{bucket}/shop/log", s3.store)

    def write(writer: str) -> None:
        log = LogFolder(root).define(ORDERS)
        for batch in range(3):
            log.commit(Mark(writer, "g1", batch), [changes((batch, writer))])
            log.commit(Mark("both", "g1", batch), [changes((batch, "both"))])

    threads = [threading.Thread(target=write, args=(writer,)) for writer in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    logs = LogFolder(root)
    assert (logs.names(), logs.served("orders")) == (["orders"], 1)
    log = logs.open("orders", 1)
    assert (log.begin(), log.end()) == (1, 9)
    rows = sorted(row for segment in held(log) for row in segment)
    assert rows == sorted((batch, writer) for batch in range(3) for writer in ("a", "b", "both"))
    log.cut(8)
    assert len(held(logs.open("orders", 1), 8)) == 1
    with pytest.raises(LogCutError):
        logs.open("orders", 1).after(3)
    logs.drop("orders", 1)
    assert logs.names() == []
