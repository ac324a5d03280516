"""The function library, one family per file, and the functions of a project."""
