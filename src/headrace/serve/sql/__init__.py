"""`POST /sql`: SQL queries over endpoints and lake tables, executed by DuckDB in separate processes."""
