"""How the bytes of a record are laid out, one kind per file."""
