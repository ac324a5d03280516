"""Queries of a store: conditions, plans, index scans, search."""
