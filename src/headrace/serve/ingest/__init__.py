"""Ingestion: records of streams and changes of tables that callers post."""
