"""`POST /sql`: questions in SQL over endpoints and lake tables, answered by DuckDB in processes of their own."""
