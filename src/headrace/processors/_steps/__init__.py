"""Shared by many processors: columns, JSON text, SQL conditions, classes of the project."""
