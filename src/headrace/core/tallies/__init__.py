"""Counters of tasks and the driver, for metrics."""
