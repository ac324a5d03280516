"""A served store for tests: real folders and pointers, as an applier leaves them."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa

from headrace.core.endpoints import Endpoint, Op
from headrace.core.schema import from_ddl
from headrace.project.serving import ServeSpec
from headrace.serve.base.ports import shared
from headrace.serve.base.settings import Settings
from headrace.serve.base.status import write_status
from headrace.serve.replica.pointers import Pointer, write_pointer
from headrace.serve.rest.api import server
from headrace.store.endpoint.writer import StoreWriter

SECRET = "a secret of at least thirty-two characters"
FILMS = Endpoint(
    "films",
    from_ddl("id bigint, title string, year int, region string, rating double, price decimal(10,2), at timestamp"),
    key=("id",),
    indexes=(("year",), ("region", "year")),
    text=("title",),
    description="Films that are shown.",
)
VISITS = Endpoint(
    "visits",
    from_ddl("who string, day date, pages int, tags array<string>, place struct<city: string, zip: string>"),
    key=("who", "day"),
)
NOTES = Endpoint("notes", from_ddl("text string, raw binary"))


def film(number: int, **more: Any) -> dict[str, Any]:
    """A film; every third is shown in the US."""
    return {
        "id": number,
        "title": f"Film {number}",
        "year": 1990 + number % 30,
        "region": "US" if number % 3 == 0 else "EU",
        "rating": number / 10,
        "price": None,
        "at": None,
        **more,
    }


def changes(endpoint: Endpoint, rows: Sequence[dict[str, Any]], op: Op = Op.UPSERT) -> pa.RecordBatch:
    """Rows as changes."""
    listed = [{"__op": int(op), **row} for row in rows]
    return pa.RecordBatch.from_pylist(listed, endpoint.changes)


class Served:
    """A store folder with endpoints in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writers: dict[tuple[str, int], StoreWriter] = {}
        self._pointers: dict[str, Pointer] = {}

    def put(self, endpoint: Endpoint, rows: Sequence[dict[str, Any]] = (), op: Op = Op.UPSERT) -> StoreWriter:
        """Write rows of an endpoint, which is served from then on."""
        name, version = endpoint.name, endpoint.version
        home = self.folder / "store" / name
        writer = self._writers.get((name, version))
        if writer is None:
            writer = self._writers[name, version] = StoreWriter.open(home / f"v{version}-a", endpoint)
        writer.apply(writer.position + 1, [changes(endpoint, rows, op)])
        folders = {**self._pointers.get(name, Pointer()).folders, version: f"v{version}-a"}
        self._pointers[name] = Pointer(version, folders)
        write_pointer(home, self._pointers[name])
        said = {one: {"state": "ready", "rows": 1, "error": None} for one in self._pointers}
        write_status(self.folder / "store", said)
        return writer

    def settings(self, **serve: Any) -> Settings:
        """Settings with these values under `serve:`."""
        return Settings(
            project="cinema",
            root=self.folder,
            spec=ServeSpec.model_validate(serve),
            log=self.folder / "log",
            store=self.folder / "store",
            snapshots=self.folder / "snapshots",
        )

    def close(self) -> None:
        """Let go of the stores."""
        for writer in self._writers.values():
            writer.close()


class Running:
    """The API of a node, on a thread."""

    def __init__(self, settings: Settings) -> None:
        self._socket = shared("127.0.0.1", 0)
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._server = server(settings)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), daemon=True)
        self._thread.start()
        httpx.HTTPTransport(retries=50).handle_request(httpx.Request("GET", self.url)).close()

    def close(self) -> None:
        """Let it end."""
        self._server.should_exit = True
        self._thread.join(10)


def api_key(name: str, key: str, **more: Any) -> dict[str, Any]:
    """An API key as it stands in the project file."""
    return {"name": name, "sha256": hashlib.sha256(key.encode()).hexdigest(), **more}


def ids(body: bytes) -> list[int]:
    """The ids in an answer."""
    return [row["id"] for row in json.loads(body)]
