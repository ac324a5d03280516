"""Dagger's SQL (Flink 1.14) in Spark SQL: syntax that only Dagger has is rewritten, the rest stays as written."""
