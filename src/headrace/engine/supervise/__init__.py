"""Start, watch, switch and stop the flows of a project."""
