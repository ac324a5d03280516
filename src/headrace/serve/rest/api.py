"""The API processes of a serve node. The node starts each with `python -m headrace.serve.rest.api` and stops it."""

from __future__ import annotations

import gc

from uvicorn import Config, Server

from headrace.core.runtime.lifeline import STOP_SECONDS, end_with_parent
from headrace.serve.base.ports import shared
from headrace.serve.base.settings import Settings
from headrace.serve.rest.app import create_app
from headrace.serve.rest.connection import CHECK_SECONDS, IDLE_SECONDS, HttpConnection

_BACKLOG = 2048
_MESSAGE_BYTES = 1 << 20
"""The largest WebSocket message: callers send small ones."""


def server(settings: Settings) -> Server:
    """The HTTP server; `run` and `serve` take bound sockets."""

    async def check_connections() -> None:
        for connection in list(http_server.server_state.connections):
            if isinstance(connection, HttpConnection):
                connection.check_idle()

    http_server = Server(
        Config(
            create_app(settings),
            loop="uvloop",
            http=HttpConnection,
            ws="websockets-sansio",
            ws_max_size=_MESSAGE_BYTES,
            # heartbeats detect dead connections, and slow readers may stay connected
            ws_ping_interval=None,
            ws_per_message_deflate=False,
            lifespan="on",
            interface="asgi3",
            log_config=None,
            log_level="error",
            access_log=False,
            # the caller is the peer of the connection: anyone can send a header
            proxy_headers=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=int(STOP_SECONDS * 0.7),
            callback_notify=check_connections,
            timeout_notify=CHECK_SECONDS,
        )
    )
    return http_server


def main() -> None:
    """Serve until SIGTERM."""
    end_with_parent()
    settings = Settings.here()
    http_server = server(settings)
    gc.freeze()  # objects created so far stay: exclude them from garbage collection
    http_server.run([shared(settings.spec.host, settings.spec.port)])


if __name__ == "__main__":
    main()
