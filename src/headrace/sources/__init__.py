"""Where streams come from, one kind per file."""
