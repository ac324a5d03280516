"""The API processes of a serve node. The node starts each with `python -m headrace.serve.rest.api` and stops it."""

from __future__ import annotations

import gc

from uvicorn import Config, Server

from headrace.core.processes.lifeline import STOP_SECONDS, end_with_parent
from headrace.serve.base.ports import shared
from headrace.serve.base.settings import Settings
from headrace.serve.rest.app import create_app
from headrace.serve.rest.connection import IDLE_SECONDS, LOOK_SECONDS, HttpConnection

_BACKLOG = 2048
_MESSAGE_BYTES = 1 << 20
"""Of a WebSocket: those that callers send are small."""


def server(settings: Settings) -> Server:
    """What answers; `run` and `serve` take sockets that are bound."""

    async def look() -> None:
        for connection in list(made.server_state.connections):
            if isinstance(connection, HttpConnection):
                connection.look()

    made = Server(
        Config(
            create_app(settings),
            loop="uvloop",
            http=HttpConnection,
            ws="websockets-sansio",
            ws_max_size=_MESSAGE_BYTES,
            # heartbeats tell that a line is dead, and callers who read slowly may stay
            ws_ping_interval=None,
            ws_per_message_deflate=False,
            lifespan="on",
            interface="asgi3",
            log_config=None,
            log_level="error",
            access_log=False,
            # who asks is who has the connection: anybody can write a header
            proxy_headers=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=int(STOP_SECONDS * 0.7),
            callback_notify=look,
            timeout_notify=LOOK_SECONDS,
        )
    )
    return made


def main() -> None:
    """Serve until SIGTERM."""
    end_with_parent()
    settings = Settings.here()
    made = server(settings)
    gc.freeze()  # what was made so far stays: no need to look through it again and again
    made.run([shared(settings.spec.host, settings.spec.port)])


if __name__ == "__main__":
    main()
