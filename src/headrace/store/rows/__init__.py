"""How rows, keys and values are laid out in a store."""
