"""Compiles SQL to the algebra."""
