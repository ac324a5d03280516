"""The copy of a captured table."""
