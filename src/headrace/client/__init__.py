"""A client of endpoints."""
