"""Shared by the processors that look rows up in a table."""
