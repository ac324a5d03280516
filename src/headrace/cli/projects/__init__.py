"""Commands that make, check and run a project."""
