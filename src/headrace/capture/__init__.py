"""Capture: follows the sources of tables, keeps a copy of each table and writes what changes to a log."""
