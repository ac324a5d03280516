"""Child processes, and how they end with their parent."""
