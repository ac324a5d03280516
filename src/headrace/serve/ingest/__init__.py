"""Records and table rows that callers post."""
