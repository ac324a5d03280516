"""The stream of a replication slot: receives messages, and confirms up to where they are durable.

psycopg does not support replication, but gives access to libpq's copy mode, which is sufficient.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from struct import Struct

import psycopg
from psycopg import pq, sql
from psycopg.errors import error_from_result

from headrace.systems.postgres.tables import Connection
from headrace.systems.services import service_unavailable

_DATA, _KEEPALIVE = ord("w"), ord("k")
_DATA_HEADER = 25
_ALIVE = Struct(">xQq?")
_STATUS = Struct(">cQQQq?")
_EPOCH_SECONDS = 946_684_800
_ASK_SECONDS = 10.0
"""How often an idle server is asked for its position, which also keeps the connection alive."""
_SILENCE_SECONDS = 120.0
"""After so long without an answer the server counts as unavailable."""


def lsn_text(lsn: int) -> str:
    """As PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_number(text: str) -> int:
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) + int(low, 16)


class CopyMessages:
    """The messages that a connection in copy mode receives."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.pgconn = connection.pgconn
        self._poll = select.poll()
        self._poll.register(self.pgconn.socket, select.POLLIN)

    def next(self) -> bytes | None:
        """The next message; None when there is none yet, and StopIteration at the end."""
        size, data = self.pgconn.get_copy_data(1)
        if size == 0:
            self.pgconn.consume_input()
            size, data = self.pgconn.get_copy_data(1)
        if size > 0:
            return bytes(data)
        if size == 0:
            return None
        result = self.pgconn.get_result()
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            raise error_from_result(result)
        raise StopIteration

    def wait(self, seconds: float) -> bool:
        """Wait until data arrives, or so many seconds; whether it has arrived."""
        return bool(self._poll.poll(max(0.0, seconds) * 1000))

    def all(self) -> Iterator[bytes]:
        while True:
            try:
                message = self.next()
            except StopIteration:
                return
            if message is not None:
                yield message
            elif not self.wait(_SILENCE_SECONDS):
                raise psycopg.OperationalError(f"nothing came for {_SILENCE_SECONDS:g} s")


def answer(connection: Connection, until: float) -> pq.abc.PGresult | None:
    """The server's answer; None when there is none in time."""
    messages, pgconn = CopyMessages(connection), connection.pgconn
    while True:
        pgconn.consume_input()
        if not pgconn.is_busy():
            break
        left = until - time.monotonic()
        if left <= 0:
            return None
        messages.wait(left)
    result = pgconn.get_result()
    if result is None:
        raise psycopg.OperationalError("the server gave no answer")
    if result.status == pq.ExecStatus.FATAL_ERROR:
        raise error_from_result(result)
    return result


def execute(connection: Connection, statement: sql.Composable) -> None:
    """Run a command that starts copy mode."""
    connection.pgconn.send_query(statement.as_string(connection).encode())
    if answer(connection, time.monotonic() + _SILENCE_SECONDS) is None:
        raise psycopg.OperationalError(f"no answer within {_SILENCE_SECONDS:g} s")


class ReplicationStream:
    """Reads from a slot, which advances only as far as confirmed."""

    def __init__(self, connection: Connection, label: str, confirmed: int) -> None:
        self._connection = connection
        self._label = label
        self._confirmed = confirmed
        self._messages = CopyMessages(connection)
        self._asked = self._heard = time.monotonic()
        self.server_at = 0
        """All changes before it were sent."""
        self.is_asked = False
        """Whether the server has requested a confirmation since the last one. A server that shuts down waits until all
        of its log is confirmed."""

    def start(self, slot: str, publication: str, lsn: int) -> None:
        """Start with the first transaction that commits at this position or later."""
        names = sql.Literal(sql.Identifier(publication).as_string(self._connection))
        command = sql.SQL("START_REPLICATION SLOT {} LOGICAL {} (proto_version '1', publication_names {})").format(
            sql.Identifier(slot), sql.SQL(lsn_text(lsn)), names
        )
        execute(self._connection, command)

    def message(self) -> bytes | None:
        """The next message of the output plugin; None when there is none yet."""
        while True:
            try:
                data = self._messages.next()
            except StopIteration:
                raise service_unavailable(self._label, "it ended the stream") from None
            if data is None:
                return None
            self._heard = time.monotonic()
            if data[0] == _DATA:
                return data[_DATA_HEADER:]
            if data[0] == _KEEPALIVE:
                self.server_at, _, wants_answer = _ALIVE.unpack_from(data)
                if wants_answer:
                    self._tell(ask=False)
                    self.is_asked = True

    def wait(self, seconds: float) -> None:
        """Wait until data arrives, or so many seconds; ask an idle server for its position."""
        now = time.monotonic()
        if now - self._heard > _SILENCE_SECONDS:
            raise service_unavailable(self._label, f"it has sent nothing for {_SILENCE_SECONDS:g} s")
        if now - self._asked >= _ASK_SECONDS:
            self._tell(ask=True)
        self._messages.wait(min(seconds, _ASK_SECONDS))

    def confirm(self, lsn: int) -> None:
        """Confirm that all before this position is durable, so that the server can discard it."""
        if lsn > self._confirmed:
            self._confirmed, self.is_asked = lsn, False
            self._tell(ask=False)

    def _tell(self, ask: bool) -> None:
        if ask:
            self._asked = time.monotonic()
        clock = int((time.time() - _EPOCH_SECONDS) * 1_000_000)
        durable = self._confirmed
        self._messages.pgconn.put_copy_data(_STATUS.pack(b"r", durable, durable, durable, clock, ask))
        self._messages.pgconn.flush()

    def close(self) -> None:
        self._connection.close()
