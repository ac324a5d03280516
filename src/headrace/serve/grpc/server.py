"""The gRPC server of one process."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from headrace.serve.access.auth import Callers
from headrace.serve.access.stores import Stores
from headrace.serve.base.meters import Meters
from headrace.serve.base.settings import Settings
from headrace.serve.grpc.calls import Calls, Method
from headrace.serve.grpc.http2.connection import Http2Connection
from headrace.serve.grpc.inspection import Inspection
from headrace.serve.grpc.services import Services

_THREADS = 4
_BACKLOG = 1024
_WRITE_SECONDS = 1.0


class Server:
    """One of several processes that listen on the same port."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stores = Stores(settings)
        self._callers = Callers(settings.spec, settings.project, root=settings.root, shared=settings.store / "limits")
        self._meters = Meters(settings.store)
        self.services = Services(settings, self._stores, self._callers, self._meters)
        self._inspection = Inspection(self.services)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="grpc")
        self._connections: set[Http2Connection] = set()
        self._server: asyncio.Server
        self._writing: asyncio.Task[None]

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port, which the system chooses for port 0."""
        calls = Calls(self.find, self._threads, int(self._settings.spec.limits.body))
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Http2Connection(calls, self._connections), host, port, backlog=_BACKLOG, reuse_port=True
        )
        self._writing = asyncio.create_task(self._write())
        return int(self._server.sockets[0].getsockname()[1])

    def find(self, path: str) -> Method | None:
        return self.services.find(path) or self._inspection.find(path)

    async def stop(self, seconds: float) -> None:
        """Accept no new calls, end live ones, and let the others finish within `seconds`."""
        self._server.close()
        self.services.feeds.stop()
        for connection in list(self._connections):
            connection.shut_down()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._connections:
                    await asyncio.sleep(0.01)
        for connection in list(self._connections):
            connection.abort()
        self._writing.cancel()
        self._meters.write()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._stores.close()
        self._callers.close()

    async def _write(self) -> None:
        while True:
            await asyncio.sleep(_WRITE_SECONDS)
            self._meters.write()
