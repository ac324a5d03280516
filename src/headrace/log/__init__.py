"""Committed change logs of endpoints."""
