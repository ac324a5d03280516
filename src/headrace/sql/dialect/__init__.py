"""Dagger's SQL (Flink 1.14) beside Spark's own: what only Dagger has is rewritten, all the rest stays as written."""
