from __future__ import annotations

import pytest

from headrace.core.errors import RequestError
from headrace.serve.sql.text import QueriedTable, read

COLUMNS = ["id", "region", "amount"]

# what must never run, with the code of its refusal
ATTACKS = [
    "INSERT INTO orders VALUES (1)",
    "UPDATE orders SET id = 1",
    "DELETE FROM orders",
    "TRUNCATE orders",
    "DROP TABLE orders",
    "CREATE TABLE x AS SELECT 1",
    "CREATE MACRO f(x) AS x",
    "ALTER TABLE orders ADD COLUMN x INT",
    "MERGE INTO orders USING regions ON true WHEN MATCHED THEN DELETE",
    "SELECT * INTO x FROM orders",
    "WITH x AS (INSERT INTO orders VALUES (1) RETURNING *) SELECT * FROM x",
    "COPY orders TO 'x.csv'",
    "COPY (SELECT 1) TO 'x.csv'",
    "COPY orders FROM 'x.csv'",
    "EXPORT DATABASE 'x'",
    "IMPORT DATABASE 'x'",
    "ATTACH 'x.db' AS x",
    "DETACH x",
    "USE x",
    "INSTALL httpfs",
    "LOAD httpfs",
    "LOAD 'x.so'",
    "SET memory_limit = '1TB'",
    "SET enable_external_access = true",
    "RESET memory_limit",
    "SET VARIABLE x = 1",
    "PRAGMA database_list",
    "PRAGMA enable_profiling",
    "CALL pragma_version()",
    "CHECKPOINT",
    "VACUUM",
    "BEGIN",
    "COMMIT",
    "PREPARE x AS SELECT 1",
    "EXECUTE x",
    "COMMENT ON TABLE orders IS 'x'",
    "SHOW ALL TABLES",
    "SHOW DATABASES",
    "PIVOT orders ON region",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_csv_auto('/etc/passwd')",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_blob('/etc/passwd')",
    "SELECT * FROM read_parquet('http://example.org/x')",
    "SELECT * FROM read_json('/etc/passwd')",
    "SELECT * FROM parquet_metadata('x')",
    "SELECT * FROM sniff_csv('/etc/passwd')",
    "SELECT * FROM glob('/*')",
    "SELECT * FROM query('SELECT 1')",
    "SELECT * FROM query_table('orders')",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM pragma_database_list()",
    "SELECT * FROM arrow_scan(1, 2, 3)",
    "SELECT * FROM sqlite_scan('a', 'b')",
    "SELECT * FROM orders, LATERAL (SELECT * FROM read_text('/etc/passwd'))",
    "SELECT (SELECT content FROM read_text('/etc/passwd'))",
    "SELECT 1 UNION ALL SELECT content FROM read_text('/etc/passwd')",
    "WITH x AS (FROM read_text('/etc/passwd')) FROM x",
    "SELECT current_setting('home_directory')",
    "SELECT getenv('HOME')",
    "EXPLAIN INSERT INTO orders VALUES (1)",
    "EXPLAIN ANALYZE DELETE FROM orders",
    "EXPLAIN EXPLAIN SELECT 1",
    "SELECT 1; SELECT 2",
    "SELECT 1; DROP TABLE orders",
    "",
    "-- nothing",
    "SELEC 1",
    "SELECT 'open",
    "SELECT " + "(" * 3_000 + "1" + ")" * 3_000,
    "SELECT '" + "x" * 100_000 + "'",
]


@pytest.mark.parametrize("text", ATTACKS, ids=lambda text: text[:50])
def test_only_questions_are_taken(text: str) -> None:
    with pytest.raises(RequestError) as caught:
        read(text)
    assert caught.value.code in ("bad-sql", "sql-not-allowed")
    assert caught.value.status in (400, 403, 413)


@pytest.mark.parametrize(
    ("text", "tables"),
    [
        ("SELECT 1", []),
        ("VALUES (1, 2)", []),
        ("FROM Orders", ["orders"]),
        ("(SELECT * FROM orders) UNION SELECT * FROM regions;", ["orders", "regions"]),
        ('SELECT * FROM "orders@v2"', ["orders@v2"]),
        ("SELECT * FROM lake.visits JOIN orders ON id = order_id", ["lake.visits", "orders"]),
        ("EXPLAIN SELECT * FROM orders", ["orders"]),
        ("explain analyze SELECT * FROM orders", ["orders"]),
        ("DESCRIBE orders", ["orders"]),
        ("SUMMARIZE orders", ["orders"]),
        ("SELECT * FROM range(3), generate_series(1, 2) t(i), unnest([1, 2])", []),
        ("SELECT * FROM 'x.csv'", ["x.csv"]),
        ("SELECT * FROM information_schema.tables", ["information_schema.tables"]),
        ("WITH a AS (SELECT * FROM orders) SELECT * FROM a WHERE id IN (SELECT id FROM b)", ["a", "b", "orders"]),
    ],
)
def test_the_tables_of_a_question(text: str, tables: list[str]) -> None:
    assert sorted(map(str, read(text).tables)) == tables


def test_the_kinds_of_questions() -> None:
    assert read(" show  tables ; ").lists_tables
    assert read("DESCRIBE orders").describes
    assert not read("SUMMARIZE orders").describes
    assert read("WITH A AS (SELECT 1) FROM a").defined == {"a"}
    assert str(QueriedTable("lake", "x")) == "lake.x"


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("SELECT id FROM orders", ["id"]),
        ("SELECT ID, o.Region FROM orders o", ["id", "region"]),
        ("SELECT count(*) FROM orders", ["id"]),
        ("SELECT count(*) FROM orders WHERE amount > 1", ["amount"]),
        ("SELECT id FROM orders JOIN regions USING (region)", ["id", "region"]),
        ("SELECT * FROM orders", COLUMNS),
        ("SELECT o.* FROM orders o", COLUMNS),
        ("SELECT * EXCLUDE (id) FROM orders", COLUMNS),
        ("SELECT columns('i.*') FROM orders", COLUMNS),
        ("SELECT orders FROM orders", COLUMNS),
        ("SELECT o FROM orders o", COLUMNS),
        ("SELECT id FROM orders NATURAL JOIN regions", COLUMNS),
        ("FROM orders", COLUMNS),
        ("TABLE orders", COLUMNS),
        ("SUMMARIZE orders", COLUMNS),
        ("SELECT id FROM (DESCRIBE orders)", COLUMNS),
        ("SELECT sum(id) FROM orders PIVOT (sum(amount) FOR region IN ('EU'))", COLUMNS),
    ],
)
def test_only_columns_that_can_matter_are_read(text: str, columns: list[str]) -> None:
    assert read(text).columns(COLUMNS) == columns
