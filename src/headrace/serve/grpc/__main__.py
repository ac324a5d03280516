"""`python -m headrace.serve.grpc`: one gRPC process of a node, started and ended by the node."""

from __future__ import annotations

import asyncio
import gc
import signal

import uvloop

from headrace.core.runtime import lifeline
from headrace.serve.base.settings import Settings
from headrace.serve.grpc.server import Server

_FINISH_SECONDS = lifeline.STOP_SECONDS * 0.7


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    server = Server(settings)
    lifeline.on_stop(lambda: _stop_feeds(loop, server))
    await server.start(settings.spec.host, settings.spec.grpc_port or 0)
    await stopping.wait()
    await server.stop(_FINISH_SECONDS)


def _stop_feeds(loop: asyncio.AbstractEventLoop, server: Server) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(server.services.feeds.stop)


def main() -> None:
    lifeline.end_with_parent()
    settings = Settings.here()
    gc.freeze()  # objects created so far stay: exclude them from garbage collection
    uvloop.run(serve(settings))


if __name__ == "__main__":
    main()
