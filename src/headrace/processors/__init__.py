"""Processors, one kind per file."""
