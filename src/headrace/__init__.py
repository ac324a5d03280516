"""Headrace: declare streams, tables, SQL and endpoints in one project; it runs and serves them."""

__version__ = "0.1.0"
