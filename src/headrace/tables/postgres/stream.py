"""The stream of a replication slot: messages in, and out again how far they are durable.

psycopg has no replication of its own, but lets at libpq's copy mode, which is all it takes.
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
"""How often an idle server is asked how far it is, which also tells it that we are there."""
_SILENCE_SECONDS = 120.0
"""After so long without an answer a server is taken for gone."""


def lsn_text(lsn: int) -> str:
    """As PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_number(text: str) -> int:
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) + int(low, 16)


class CopyMessages:
    """What a connection in copy mode receives, message by message."""

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
        """Until something comes, or so long; whether it came."""
        return bool(self._poll.poll(max(0.0, seconds) * 1000))

    def all(self) -> Iterator[bytes]:
        """All messages up to the end."""
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
    """What the server says to what was sent; None when it has not in time."""
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
    """A command that opens copy mode."""
    connection.pgconn.send_query(statement.as_string(connection).encode())
    if answer(connection, time.monotonic() + _SILENCE_SECONDS) is None:
        raise psycopg.OperationalError(f"no answer within {_SILENCE_SECONDS:g} s")


class ReplicationStream:
    """Follows a slot. It moves on only as far as it is told."""

    def __init__(self, connection: Connection, label: str, confirmed: int) -> None:
        self._connection = connection
        self._label = label
        self._confirmed = confirmed
        self._messages = CopyMessages(connection)
        self._asked = self._heard = time.monotonic()
        self.server_at = 0
        """All changes before it were sent."""
        self.is_asked = False
        """Whether the server has asked how far we are since that was last told. One that is to stop waits until it is
        told that all of its log is durable."""

    def start(self, slot: str, publication: str, lsn: int) -> None:
        """With the first transaction that commits at this place or later."""
        names = sql.Literal(sql.Identifier(publication).as_string(self._connection))
        command = sql.SQL("START_REPLICATION SLOT {} LOGICAL {} (proto_version '1', publication_names {})").format(
            sql.Identifier(slot), sql.SQL(lsn_text(lsn)), names
        )
        execute(self._connection, command)

    def message(self) -> bytes | None:
        """The next message of the plugin; None when there is none yet."""
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
        """Until something comes, or so long; a server that says nothing is asked."""
        now = time.monotonic()
        if now - self._heard > _SILENCE_SECONDS:
            raise service_unavailable(self._label, f"it has said nothing for {_SILENCE_SECONDS:g} s")
        if now - self._asked >= _ASK_SECONDS:
            self._tell(ask=True)
        self._messages.wait(min(seconds, _ASK_SECONDS))

    def confirm(self, lsn: int) -> None:
        """All before it is durable: the server need not keep it for us."""
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
        """Let go of the connection."""
        self._connection.close()
