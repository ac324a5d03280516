"""Questions answered by processes of their own: none can take more than it may, or the others with it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.serve.sql.shop import shop

from headrace.core.errors import RequestError
from headrace.project.serving import Access
from headrace.serve.access.grants import Grant
from headrace.serve.sql.messages import encode_request
from headrace.serve.sql.pool import QueryProcesses

pytestmark = pytest.mark.service

ALL = Grant("all", frozenset({"sql"}))
ENDLESS = "SELECT count(*) FROM range(1000000) a, range(1000000) b"


def children() -> set[int]:
    """The processes that answer questions."""
    found = psutil.Process().children()
    return {one.pid for one in found if one.is_running() and "headrace.serve.sql.child" in one.cmdline()}


@pytest.fixture(scope="module")
def answerers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueryProcesses]:
    """Ample time, little memory."""
    pool = QueryProcesses(shop(tmp_path_factory.mktemp("shop"), seconds=60, memory=60_000_000))
    yield pool
    pool.close()
    assert children() == set()


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[QueryProcesses]:
    """Little time."""
    pool = QueryProcesses(shop(tmp_path, seconds=4))
    yield pool
    pool.close()


async def ask(pool: QueryProcesses, text: str, grant: Grant = ALL) -> Any:
    return json.loads(await pool.run(encode_request(text, None, grant)))["rows"]


async def refusal(pool: QueryProcesses, text: str) -> str:
    with pytest.raises(RequestError) as caught:
        await ask(pool, text)
    return caught.value.code


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())


def test_a_process_answers_many_questions_for_many_callers(answerers: QueryProcesses) -> None:
    europe = Grant("eu", frozenset({"sql"}), {"orders": Access(fields=["id"], filter={"region": "EU"})})

    async def work() -> None:
        assert await ask(answerers, "SELECT count(*) FROM orders") == [[12]]
        assert await ask(answerers, "SELECT * FROM orders", europe) == [[3], [6], [9], [12]]
        assert await ask(answerers, "SELECT count(*) FROM lake.visits") == [[1000]]
        assert await refusal(answerers, "SELECT nope FROM orders") == "bad-sql"
        assert len(children()) == 1

    run(work)


# what the database counts itself, and what only its process is kept from
@pytest.mark.parametrize(
    "text", ["SELECT list(i) FROM range(1000000000) t(i)", "SELECT length(repeat('x', 2000000000)) + random()"]
)
def test_a_question_that_takes_too_much_is_ended_and_the_next_answered(answerers: QueryProcesses, text: str) -> None:
    async def work() -> None:
        await ask(answerers, "SELECT 1")
        before = children()
        assert await refusal(answerers, text) == "sql-memory"
        assert await ask(answerers, "SELECT count(*) FROM orders") == [[12]]
        assert children() != before

    run(work)


def test_questions_that_take_too_long_are_ended_and_the_next_answered(hasty: QueryProcesses) -> None:
    """Meanwhile, others are told that there are too many."""

    async def answered() -> list[Any] | None:
        try:
            return await ask(hasty, "SELECT count(*) FROM orders")
        except RequestError as error:  # on a busy machine even this can take too long
            if error.code != "sql-timeout":
                raise
            return None

    async def work() -> None:
        under_way = [asyncio.create_task(refusal(hasty, ENDLESS)) for _ in range(2)]
        await asyncio.sleep(0)
        assert await refusal(hasty, "SELECT 1") == "sql-busy"
        assert await asyncio.gather(*under_way) == ["sql-timeout", "sql-timeout"]
        deadline = time.monotonic() + 120
        while (found := await answered()) is None and time.monotonic() < deadline:
            pass
        assert found == [[12]]

    run(work)


def test_a_process_that_is_gone_is_replaced(answerers: QueryProcesses) -> None:
    async def work() -> None:
        await ask(answerers, "SELECT 1")
        for process in map(psutil.Process, children()):
            process.kill()
            process.wait(30)
        assert await ask(answerers, "SELECT 1") == [[1]]

    run(work)
