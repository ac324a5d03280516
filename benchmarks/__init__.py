"""Headrace beside the same jobs written by hand in PySpark, in one run on one machine."""
