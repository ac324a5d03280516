"""What tests of the serve node share."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest
from tests.serve.kit import FILMS, NOTES, VISITS, Served, film


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """Twenty films, two visits and a note, served: for tests that change something."""
    found = filled(tmp_path)
    yield found
    found.close()


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The same, for all tests that only look."""
    found = filled(tmp_path_factory.mktemp("shelf"))
    yield found
    found.close()


def filled(folder: Path) -> Served:
    found = Served(folder)
    found.put(FILMS, [film(number) for number in range(1, 21)])
    days = [{"who": "Ada, the first", "day": date(2026, 1, 31)}, {"who": "Bö/b", "day": date(2026, 2, 1)}]
    found.put(VISITS, [{**one, "pages": 3, "tags": ["a"], "place": {"city": "Ulm", "zip": None}} for one in days])
    found.put(NOTES, [{"text": "hello", "raw": b"\x00\xff"}])
    return found
