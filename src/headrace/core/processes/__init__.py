"""Child processes, and how they notice that their parent is gone."""
