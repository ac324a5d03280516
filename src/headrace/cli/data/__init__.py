"""Commands that look at what a project holds: endpoints, tables, dead letters, archives, tokens."""
