"""The processes that answer requests."""
