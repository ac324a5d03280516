"""Where results go, one kind per file."""
