"""Parses, analyses and rewrites SQL without Spark."""
