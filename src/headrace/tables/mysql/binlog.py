"""The binlog as whole transactions. A thread reads it, so that the caller can limit how long it waits."""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pymysql
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.event import HeartbeatLogEvent, NotImplementedEvent, QueryEvent, XAPrepareEvent, XidEvent
from pymysqlreplication.row_event import DeleteRowsEvent, PartialUpdateRowsEvent, UpdateRowsEvent, WriteRowsEvent

from headrace.core.errors import ProjectError
from headrace.tables.mysql.server import BinlogPosition, MyServer

TableName = tuple[str, str]
_ROWS = (WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent)
_OTHERS = (XidEvent, QueryEvent, HeartbeatLogEvent, XAPrepareEvent, PartialUpdateRowsEvent, NotImplementedEvent)
_HEARTBEAT_SECONDS, _SILENCE_SECONDS = 0.5, 30
_WAITING = 200
"""Transactions that are read ahead."""
_TELL_SECONDS = 5.0
"""How often the position is reported when no event concerns these tables."""
_COMPRESSED = {40, *range(165, 172)}
"""Events that contain other events: one of MySQL, several of MariaDB."""
_DEFINES = re.compile(r"\s*(?:/\*.*?\*/\s*)*(ALTER|RENAME|DROP|CREATE|TRUNCATE)\b", re.IGNORECASE | re.DOTALL)
_WRITES = re.compile(r"\s*(?:/\*.*?\*/\s*)*(INSERT|UPDATE|DELETE|REPLACE|LOAD)\b", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class Statement:
    """A DDL statement."""

    schema: str
    text: str

    @property
    def verb(self) -> str:
        match = _DEFINES.match(self.text)
        return match[1].upper() if match else ""

    def names(self, name: TableName) -> bool:
        """Whether it may concern a table, or one of the same name in another database."""
        schema, table = name
        words = re.findall(r"`(?:[^`]|``)+`|[\w$]+", self.text)
        bare = {word.strip("`").replace("``", "`").lower() for word in words}
        return table.lower() in bare and (self.schema.lower() == schema.lower() or schema.lower() in bare)

    def has(self, *words: str) -> bool:
        """Whether it contains one of these words."""
        return re.search(rf"\b(?:{'|'.join(words)})\b", self.text, re.IGNORECASE) is not None


@dataclass(frozen=True)
class Transaction:
    """Events that were committed together; `place` is the position after them."""

    place: BinlogPosition
    at: datetime
    events: Sequence[Any] = ()
    """The row events of these tables."""
    statement: Statement | None = None


class Binlog:
    """The transactions after a position."""

    def __init__(self, server: MyServer, number: int, tables: Collection[TableName], after: BinlogPosition) -> None:
        self._server, self._tables = server, frozenset(tables)
        self._queue: queue.Queue[Transaction | ProjectError | Exception] = queue.Queue(_WAITING)
        self._stop = threading.Event()
        self._connections = 0
        self._file, self._said = after.file, time.monotonic()
        self._stream = BinLogStreamReader(
            connection_settings={**server.settings, "read_timeout": _SILENCE_SECONDS},
            server_id=number,
            blocking=True,
            resume_stream=True,
            log_file=after.file,
            log_pos=after.offset,
            only_events=[*_ROWS, *_OTHERS],
            filter_non_implemented_events=False,
            only_schemas=sorted({schema for schema, _ in tables}),
            only_tables=sorted({table for _, table in tables}),
            slave_heartbeat=_HEARTBEAT_SECONDS,
            pymysql_wrapper=self._connect,
            verify_checksum=True,
            enable_logging=False,
        )
        self._thread = threading.Thread(target=self._run, name="binlog", daemon=True)
        self._thread.start()

    def next(self, seconds: float) -> Transaction | None:
        """The next transaction, after waiting up to so many seconds. Raises the error that ended the thread."""
        try:
            item = self._queue.get(timeout=seconds) if seconds > 0 else self._queue.get_nowait()
        except queue.Empty:
            return None
        if isinstance(item, Transaction):
            return item
        raise item

    def close(self) -> None:
        self._stop.set()
        self._thread.join(_SILENCE_SECONDS)

    def _connect(self, **settings: Any) -> Any:
        # the library reconnects on its own, even in the middle of a transaction, whose beginning would be lost
        self._connections += 1
        if self._connections > 2:
            raise pymysql.OperationalError(2013, "the connection was lost")
        return pymysql.connect(**settings)

    def _run(self) -> None:
        try:
            self._read()
        except ProjectError as error:
            self._put(error)
        except (pymysql.Error, OSError) as error:
            self._put(self._server.failure(error))
        except Exception as error:  # a bug here or in the library: must not get lost with the thread
            self._put(error)
        finally:
            self._stream.close()

    def _read(self) -> None:
        events: list[Any] = []
        while not self._stop.is_set():
            event = self._stream.fetchone()
            if event is None:
                raise pymysql.OperationalError(2013, "the server has ended the binlog")
            match event:
                case WriteRowsEvent() | UpdateRowsEvent() | DeleteRowsEvent():
                    if (event.schema, event.table) in self._tables and event.rows:
                        events.append(event)
                case XidEvent():
                    self._end(event, events)
                    events = []
                case QueryEvent():
                    events = self._query(event, events)
                case _:
                    self._other(event, events)

    def _query(self, event: Any, events: list[Any]) -> list[Any]:
        text = event.query if isinstance(event.query, str) else bytes(event.query).decode(errors="replace")
        word = text.strip().upper()
        if word in ("COMMIT", "ROLLBACK"):
            self._end(event, events if word == "COMMIT" else [])
            return []
        schema = event.schema if isinstance(event.schema, str) else bytes(event.schema).decode(errors="replace")
        statement = Statement(schema, text)
        concerned = any(statement.names(table) for table in self._tables)
        if concerned and _WRITES.match(text):
            raise unreadable(
                self._server, "a session has written a statement instead of rows: binlog_format must be ROW"
            )
        if _DEFINES.match(text) and concerned:
            self._end(event, [], statement)
        elif _DEFINES.match(text):
            self._end(event, [])
        return events

    def _other(self, event: Any, events: list[Any]) -> None:
        match event:
            case XAPrepareEvent() if events:
                raise unreadable(self._server, "an XA transaction has changed one of the tables; they are not followed")
            case PartialUpdateRowsEvent() if (event.schema, event.table) in self._tables:
                raise unreadable(self._server, "a session has written parts of JSON: see binlog_row_value_options")
            case NotImplementedEvent() if event.event_type in _COMPRESSED:
                raise unreadable(
                    self._server, "a session has written it compressed: see binlog_transaction_compression"
                )

    def _end(self, event: Any, events: Sequence[Any], statement: Statement | None = None) -> None:
        """Hand over a complete transaction."""
        quiet = not events and statement is None
        if quiet and time.monotonic() - self._said < _TELL_SECONDS:
            return
        self._said = time.monotonic()
        place = BinlogPosition.of(self._stream.log_file, event.packet.log_pos)
        self._put(Transaction(place, datetime.fromtimestamp(event.timestamp, UTC), tuple(events), statement))

    def _put(self, item: Transaction | Exception) -> None:
        while not self._stop.is_set():
            try:
                self._queue.put(item, timeout=_HEARTBEAT_SECONDS)
            except queue.Full:
                continue
            return


def unreadable(server: MyServer, why: str) -> ProjectError:
    """The error for an event whose rows would be lost."""
    return ProjectError(
        "binlog-unreadable",
        f"the binlog of {server.address} has an event that cannot be captured: {why}",
        hint="fix the setting, and remove the table's log to start with a new snapshot",
    )
