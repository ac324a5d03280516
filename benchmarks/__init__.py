"""Benchmarks of Headrace against the same jobs in plain PySpark and against other servers."""
