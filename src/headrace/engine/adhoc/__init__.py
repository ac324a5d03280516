"""SQL queries that a user runs once, outside of any flow."""
