"""The kind `mysql` against a real MariaDB: what comes out of a reader adds up to what the server has."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pymysql
import pytest
from tests.conftest import unavailable
from tests.errors import code_of

from headrace.core.context import Context
from headrace.core.errors import Exit, ProjectError
from headrace.core.positions import Position
from headrace.core.tables import CapturedBatch, TableShape
from headrace.tables.mysql import MySqlTable, reader
from headrace.tables.mysql.binlog import Statement
from headrace.tables.mysql.types import MyColumn
from headrace.testing.services import MariaDB

CONTEXT = Context(Path("project"), "state")
NUMBERS = count(1)
Run = Callable[..., list[Any]]


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDB]:
    problem = MariaDB.problem()
    if problem is not None:
        unavailable(problem)
    with MariaDB() as running:
        yield running


@pytest.fixture
def run(server: MariaDB) -> Iterator[Run]:
    """Runs statements, each its own transaction, in a database of the test's own."""
    database = f"d{next(NUMBERS)}"
    connection = pymysql.connect(host="127.0.0.1", port=server.port, user="root", autocommit=True, read_timeout=120)
    cursor = connection.cursor()
    cursor.execute(f"CREATE DATABASE {database} CHARACTER SET utf8mb4")
    cursor.execute(f"USE {database}")

    def execute(*statements: str) -> list[Any]:
        for one in statements:
            cursor.execute(one)
        return list(cursor.fetchall())

    yield execute
    connection.close()


class Mirror:
    """Keeps what a capture would: rows by key, the position, the shapes; and restarts as it would."""

    def __init__(self, server: MariaDB, database: str, *tables: str, user: str = "root") -> None:
        url = f"mysql://{user}@{server.address}/{database}"
        self.sources = {table: MySqlTable(url=url, table=table) for table in tables}  # type: ignore[arg-type]
        self.rows: dict[str, dict[tuple[Any, ...], tuple[Any, ...]]] = {table: {} for table in tables}
        self.shapes: dict[str, TableShape] = {}
        self.position: Position | None = None
        self.began: list[str] = []
        self.sizes: list[int] = []
        self._left: dict[str, set[tuple[Any, ...]]] = {}
        self.reader: Any = None
        self.start()

    def start(self) -> None:
        self.reader = MySqlTable.reader(dict(self.sources), self.shapes, self.position, CONTEXT)

    def restart(self) -> None:
        self.reader.close()
        self.start()

    def step(self, seconds: float = 0.0) -> CapturedBatch | None:
        taken: CapturedBatch | None = self.reader.read(seconds)
        if taken is None:
            return None
        for name, shape in taken.shapes.items():
            added = len(shape.columns) - len(self.shapes[name].columns) if name in self.shapes else 0
            self.rows[name] = {key: (*row, *[None] * added) for key, row in self.rows[name].items()}
            self.shapes[name] = shape
        for name in taken.begins:
            self.began.append(name)
            self._left[name] = set(self.rows[name])
        for name, table in taken.rows.items():
            assert table.schema == self.shapes[name].columns
            for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
                self._put(name, row)
        for change in taken.changes:
            if change.before is not None:
                self.rows[change.table].pop(change.before, None)
            if change.row is not None:
                pa.array([change.row[0]], self.shapes[change.table].columns[0].type)
                self._put(change.table, tuple(change.row))
        for name in taken.ends:
            for key in self._left.pop(name):
                self.rows[name].pop(key, None)
        self.sizes.append(len(taken.changes))
        self.position = taken.position
        return taken

    def _put(self, name: str, row: tuple[Any, ...]) -> None:
        shape = self.shapes[name]
        assert len(row) == len(shape.columns)
        key = tuple(row[shape.columns.names.index(part)] for part in shape.key)
        self.rows[name][key] = row
        self._left.get(name, set()).discard(key)

    def until(self, condition: Callable[[], object], seconds: float = 120.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.rows
            self.step(0.1)

    def has(self, table: str, wanted: Mapping[Any, tuple[Any, ...]]) -> None:
        """Wait until it has these rows, by the first column, and no snapshot is under way."""

        def there() -> bool:
            return not self._left and {row[0]: row for row in self.rows[table].values()} == dict(wanted)

        self.until(there)


@pytest.fixture
def mirror(server: MariaDB, run: Run) -> Iterator[Callable[..., Mirror]]:
    made: list[Mirror] = []

    def make(*tables: str, user: str = "root") -> Mirror:
        (database,) = run("SELECT DATABASE()")[0]
        made.append(Mirror(server, database, *tables, user=user))
        return made[-1]

    yield make
    for one in made:
        one.reader.close()


@pytest.mark.service
def test_snapshot_and_stream_meet_while_others_write(
    run: Run, mirror: Callable[..., Mirror], server: MariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_CHUNK", 50)
    run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t SELECT seq, 0 FROM seq_1_to_500")
    (database,) = run("SELECT DATABASE()")[0]
    done = threading.Event()

    def write() -> None:
        other = pymysql.connect(host="127.0.0.1", port=server.port, user="root", database=database, autocommit=True)
        with other.cursor() as cursor:
            for number in range(200):
                row = number * 7 % 520
                cursor.execute("INSERT INTO t VALUES (%s, 1) ON DUPLICATE KEY UPDATE v = v + 1", (row,))
                cursor.execute("DELETE FROM t WHERE id = %s", (number * 11 % 520,))
        other.close()
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    found = mirror("t")
    found.until(done.is_set)
    writer.join()
    found.has("t", {row[0]: row for row in run("SELECT * FROM t")})
    assert found.began == ["t"]
    assert found.reader.lag() == 0


@pytest.mark.service
def test_transactions_are_whole_and_keys_may_change(run: Run, mirror: Callable[..., Mirror]) -> None:
    run("CREATE TABLE a (id INT PRIMARY KEY, v INT)", "CREATE TABLE b (x INT, y VARCHAR(9), v INT, PRIMARY KEY (y, x))")
    run("CREATE TABLE other (id INT PRIMARY KEY)")
    found = mirror("a", "b")
    found.until(lambda: found.began == ["a", "b"] and found.step() is None)
    run("BEGIN", "INSERT INTO a VALUES (1, 1), (2, 2), (3, 3)", "INSERT INTO b VALUES (1, 'k', 1)", "COMMIT")
    run("INSERT INTO other VALUES (1)")
    run("BEGIN", "UPDATE a SET id = id + 10 WHERE id > 1", "DELETE FROM a WHERE id = 1", "COMMIT")
    run("BEGIN", "INSERT INTO a VALUES (99, 9)", "ROLLBACK")
    run("UPDATE b SET y = 'm', v = 7")
    found.has("a", {12: (12, 2), 13: (13, 3)})
    found.until(lambda: found.rows["b"] == {("m", 1): (1, "m", 7)})
    assert sum(found.sizes) == 8


@pytest.mark.service
def test_it_goes_on_where_it_was_after_restarts_of_both(
    run: Run, mirror: Callable[..., Mirror], server: MariaDB
) -> None:
    run(
        "CREATE TABLE t (id INT PRIMARY KEY, v INT)",
        "CREATE TABLE late (id INT PRIMARY KEY)",
        "INSERT INTO t VALUES (1, 1)",
    )
    found = mirror("t")
    found.has("t", {1: (1, 1)})
    run("INSERT INTO t VALUES (2, 2)")
    found.has("t", {1: (1, 1), 2: (2, 2)})
    run("UPDATE t SET v = 9 WHERE id = 1", "FLUSH BINARY LOGS", "INSERT INTO late VALUES (5)")
    found.sources["late"] = found.sources["t"].model_copy(update={"table": "late"})
    found.rows["late"] = {}
    found.restart()
    run("INSERT INTO t VALUES (3, 3)")
    found.has("late", {5: (5,)})
    found.has("t", {1: (1, 9), 2: (2, 2), 3: (3, 3)})
    assert found.began == ["t", "late"]
    server.stop()
    with pytest.raises(ProjectError) as caught:
        found.until(lambda: False)
    assert (caught.value.code, caught.value.exit_code) == ("mysql-unreachable", Exit.TRANSIENT)
    server.start()
    found.restart()
    connection = pymysql.connect(host="127.0.0.1", port=server.port, user="root", autocommit=True)
    database = found.sources["t"].place[0]
    connection.cursor().execute(f"DELETE FROM {database}.t WHERE id < 3")
    connection.close()
    found.has("t", {3: (3, 3)})
    assert found.began == ["t", "late"]


EXACT, LONG = "-12345678901234567890.0123456789", "123456789012345678901234567890123456789012.50"
NOON = datetime(2026, 1, 31, 10, 0, 0, 500000, tzinfo=UTC)
TYPES: list[tuple[str, str, list[tuple[str, Any]]]] = [
    ("tinyint", "tinyint", [("-128", -128)]),
    ("tinyint unsigned", "smallint", [("255", 255)]),
    ("smallint unsigned", "int", [("65535", 65535)]),
    ("mediumint", "int", [("-8388608", -8388608)]),
    ("mediumint unsigned", "int", [("16777215", 16777215)]),
    ("int unsigned", "bigint", [("4294967295", 4294967295)]),
    ("bigint", "bigint", [("-9223372036854775808", -(2**63))]),
    ("bigint unsigned", "decimal(20,0)", [("18446744073709551615", Decimal(2**64 - 1))]),
    ("decimal(30,10)", "decimal(30,10)", [(EXACT, Decimal(EXACT))]),
    ("decimal(50,2)", "string", [(LONG, LONG)]),
    ("float", "float", [("0.123456789", 0.12345679104328156)]),
    ("double", "double", [("0.1", 0.1)]),
    ("bit(1)", "boolean", [("b'1'", True), ("b'0'", False)]),
    ("bit(20)", "bigint", [("b'10000000000000000001'", 524289)]),
    ("bit(64)", "decimal(20,0)", [("b'" + "1" * 64 + "'", Decimal(2**64 - 1))]),
    ("year", "smallint", [("2026", 2026), ("'0000'", 0)]),
    ("date", "date", [("'2026-01-31'", date(2026, 1, 31)), ("'0000-00-00'", None)]),
    ("datetime(6)", "timestamp_ntz", [("'2026-01-31 12:00:00.000123'", datetime(2026, 1, 31, 12, 0, 0, 123))]),
    ("timestamp(3) null", "timestamp", [("'2026-01-31 12:00:00.5'", NOON), ("0", None)]),
    ("time", "string", [("'-838:59:59'", "-838:59:59"), ("'01:02:03'", "01:02:03")]),
    ("time(3)", "string", [("'10:00:00.25'", "10:00:00.250000"), ("'-01:02:03.5'", "-01:02:03.500000")]),
    ("char(5)", "string", [("'aé  '", "aé")]),
    ("varchar(300)", "string", [("'😀'", "😀"), ("''", "")]),
    ("varchar(20) character set latin1", "string", [("'é'", "é")]),
    ("mediumtext", "string", [("'long'", "long")]),
    ("json", "string", [("""'{"a": [1, null]}'""", '{"a": [1, null]}')]),
    ("enum('x','y''z')", "string", [("'y''z'", "y'z")]),
    ("set('a','b','c')", "string", [("'c,a'", "a,c"), ("''", "")]),
    ("binary(4)", "binary", [("x'ff00'", b"\xff\x00\x00\x00")]),
    ("varbinary(9)", "binary", [("x'00ff'", b"\x00\xff")]),
    ("blob", "binary", [("x'c328'", b"\xc3(")]),
]  # fmt: skip


@pytest.mark.service
def test_values_are_the_same_from_the_snapshot_and_from_the_binlog(run: Run, mirror: Callable[..., Mirror]) -> None:
    from headrace.core.schema import ddl_type

    run("SET SESSION sql_mode = ''", "SET NAMES utf8mb4")
    columns = ", ".join(f"c{number} {kind}" for number, (kind, _, _) in enumerate(TYPES))
    run(f"CREATE TABLE t (id INT PRIMARY KEY, {columns})")

    def insert(first: int) -> dict[int, tuple[Any, ...]]:
        wanted: dict[int, tuple[Any, ...]] = {}
        for version in range(3):
            picked = [values[version] if version < len(values) else ("NULL", None) for _, _, values in TYPES]
            run(f"INSERT INTO t VALUES ({first + version}, {', '.join(text for text, _ in picked)})")
            wanted[first + version] = (first + version, *(value for _, value in picked))
        return wanted

    wanted = insert(0)
    found = mirror("t")
    found.has("t", wanted)
    types = [ddl_type(field.type) for field in found.shapes["t"].columns][1:]
    assert types == [ddl for _, ddl, _ in TYPES]
    found.has("t", wanted | insert(10))
    assert found.began == ["t"]


@pytest.mark.service
def test_truncate_added_columns_and_rewritten_tables_are_followed(run: Run, mirror: Callable[..., Mirror]) -> None:
    run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1), (2, NULL)")
    found = mirror("t")
    found.has("t", {1: (1, 1), 2: (2, None)})
    run("ALTER TABLE t ADD COLUMN note VARCHAR(9) NULL FIRST", "UPDATE t SET note = 'x' WHERE id = 1")
    found.has("t", {1: (1, 1, "x"), 2: (2, None, None)})
    run("CREATE INDEX i ON t (v)", "ALTER TABLE t ADD INDEX j (note)", "INSERT INTO t VALUES ('y', 3, 3)")
    found.has("t", {1: (1, 1, "x"), 2: (2, None, None), 3: (3, 3, "y")})
    assert found.began == ["t"]
    run("ALTER TABLE t ADD COLUMN n INT NOT NULL DEFAULT 5", "INSERT INTO t VALUES (NULL, 4, 4, 6)")
    found.has("t", {1: (1, 1, "x", 5), 2: (2, None, None, 5), 3: (3, 3, "y", 5), 4: (4, 4, None, 6)})
    assert found.began == ["t", "t"]
    run("TRUNCATE t", "INSERT INTO t VALUES ('z', 9, 9, 9)")
    found.has("t", {9: (9, 9, "z", 9)})
    run("CREATE TABLE t2 LIKE t", "INSERT INTO t2 VALUES ('s', 5, 5, 5)", "RENAME TABLE t TO t1, t2 TO t")
    run("INSERT INTO t1 VALUES ('no', 6, 6, 6)", "INSERT INTO t VALUES ('s', 7, 7, 7)")
    found.has("t", {5: (5, 5, "s", 5), 7: (7, 7, "s", 7)})
    run("ALTER TABLE t DROP COLUMN v", "INSERT INTO t VALUES ('s', 8, 8)")
    found.has("t", {5: (5, None, "s", 5), 7: (7, None, "s", 7), 8: (8, None, "s", 8)})
    run("ALTER TABLE t MODIFY n BIGINT")
    assert code_of(lambda: found.until(lambda: False)) == "mysql-column-changed"


@pytest.mark.service
def test_a_column_that_was_added_while_nobody_looked_is_met_in_order(run: Run, mirror: Callable[..., Mirror]) -> None:
    run("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    found = mirror("t")
    found.has("t", {1: (1,)})
    found.reader.close()
    run("INSERT INTO t VALUES (2)", "ALTER TABLE t ADD COLUMN n INT DEFAULT 5", "INSERT INTO t VALUES (3, 6)")
    found.start()
    found.has("t", {1: (1, 5), 2: (2, 5), 3: (3, 6)})


@pytest.mark.service
def test_what_cannot_be_followed_is_said(run: Run, mirror: Callable[..., Mirror], server: MariaDB) -> None:
    run("CREATE TABLE t (id INT PRIMARY KEY, v INT, w TEXT)", "CREATE TABLE places (id INT PRIMARY KEY, p POINT)")
    run("INSERT INTO t VALUES (0, 0, 'a')")
    found = mirror("t")
    source = found.sources["t"]
    source.check(CONTEXT)
    assert source.shape(CONTEXT).key == ("id",)
    assert code_of(lambda: source.model_copy(update={"table": "places"}).shape(CONTEXT)) == "mysql-type"
    with pytest.raises(ProjectError) as caught:
        source.model_copy(update={"table": "tt"}).shape(CONTEXT)
    assert caught.value.code == "mysql-table-missing"
    assert "did you mean 't'?" in str(caught.value)
    run("CREATE USER IF NOT EXISTS weak@'127.0.0.1'")
    weak = MySqlTable(url=f"mysql://weak@{server.address}/x", table="t")  # type: ignore[arg-type]
    assert code_of(lambda: weak.check(CONTEXT)) == "mysql-authentication"
    wrong = MySqlTable(url=f"mysql://root:sesame@{server.address}/x", table="t")  # type: ignore[arg-type]
    with pytest.raises(ProjectError) as caught:
        wrong.check(CONTEXT)
    assert caught.value.code == "mysql-authentication"
    assert "sesame" not in f"{caught.value} {wrong!r} {wrong.group} {wrong.label} {wrong.server!r}"
    found.has("t", {0: (0, 0, "a")})
    run("SET SESSION binlog_row_image = MINIMAL", "UPDATE t SET v = 2")
    run("SET SESSION binlog_row_image = FULL")
    assert code_of(lambda: found.until(lambda: False)) == "binlog-unreadable"


@pytest.mark.service
@pytest.mark.parametrize(
    ("setting", "value", "good"),
    [("binlog_row_metadata", "MINIMAL", "FULL"), ("binlog_format", "MIXED", "ROW"), ("log_bin_compress", "ON", "OFF")],
)
def test_settings_with_which_the_binlog_does_not_tell_all_are_refused(
    run: Run, mirror: Callable[..., Mirror], setting: str, value: str, good: str
) -> None:
    run("CREATE TABLE t (id INT PRIMARY KEY)")
    run(f"SET GLOBAL {setting} = {value}")
    try:
        with pytest.raises(ProjectError) as caught:
            mirror("t").step()
    finally:
        run(f"SET GLOBAL {setting} = {good}")
    assert caught.value.code == "mysql-settings"
    assert f"SET GLOBAL {setting} = {good}" in str(caught.value.hint)


@pytest.mark.service
def test_a_binlog_that_was_purged_or_is_of_another_server_is_said(run: Run, mirror: Callable[..., Mirror]) -> None:
    run("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    found = mirror("t")
    found.has("t", {1: (1,)})
    found.reader.close()
    known = dict(found.position or {})
    run("FLUSH BINARY LOGS", "INSERT INTO t VALUES (2)", "FLUSH BINARY LOGS")
    (newest,) = [row[0] for row in run("SHOW MASTER STATUS")]

    def purged() -> bool:  # not while the server still sends the file to those who have gone
        run(f"PURGE BINARY LOGS TO '{newest}'")
        return known["file"] not in {row[0] for row in run("SHOW BINARY LOGS")}

    deadline = time.monotonic() + 120
    while not purged():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    found.start()
    assert code_of(found.step) == "binlog-missing"
    found.position = {**known, "server": "another"}
    found.start()
    assert code_of(found.step) == "binlog-other-server"


def test_statements_are_known_by_the_tables_they_name() -> None:
    about = Statement("shop", "ALTER TABLE `orders` ADD x INT")
    assert about.verb == "ALTER"
    assert about.names(("shop", "orders"))
    assert not about.names(("shop", "order"))
    assert not about.names(("other", "orders"))
    assert Statement("x", "/* c */ rename table Shop.Orders to a").names(("shop", "orders"))
    assert Statement("x", "rename table a to b").has("TABLE")


def test_json_has_one_form_whether_it_was_asked_for_or_is_in_the_binlog() -> None:
    convert = MyColumn("j", "json", "json", nullable=True, default=None).convert()
    assert convert is not None
    assert convert('{"b":1,"a":[true,null]}') == convert({b"a": [True, None], b"b": 1}) == '{"a": [true, null], "b": 1}'


def test_the_group_is_the_server_and_the_user() -> None:
    one = MySqlTable(url="mysql://u:p%40@h/shop", table="orders")  # type: ignore[arg-type]
    assert (one.group, one.place) == ("mysql u@h:3306", ("shop", "orders"))
    assert one.server.settings["password"] == "p@"
    other = MySqlTable(url="mysql://u@h/shop", table="crm.people", server_id=7)  # type: ignore[arg-type]
    assert (other.group, other.place) == ("mysql u@h:3306 7", ("crm", "people"))
    with pytest.raises(ValueError, match="must begin with mysql"):
        MySqlTable(url="postgresql://u@h/shop", table="t")  # type: ignore[arg-type]
