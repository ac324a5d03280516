"""Incremental views: SQL over changing tables, kept equal to the batch answer by a small algebra of weighted rows."""
