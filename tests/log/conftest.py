"""A folder of each kind for tests of logs."""

from __future__ import annotations

from pathlib import Path

import pytest
from obstore.store import MemoryStore

from headrace.core.files import objects
from headrace.core.files.object_store import ObjectStore
from headrace.core.files.state_files import StatePath, state_path


@pytest.fixture(params=["disk", "objects"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StatePath:
    """A folder of each kind. The second is the client's own store in memory."""
    if request.param == "disk":
        return tmp_path / "log"
    store = MemoryStore()
    monkeypatch.setattr(objects, "_client_of", lambda _store, _bucket: store)
    return state_path("s3://bucket/log", ObjectStore())
