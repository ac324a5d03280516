"""Counts that tasks and the driver add up for metrics."""
