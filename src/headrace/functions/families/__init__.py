"""The function library, one family per module."""
