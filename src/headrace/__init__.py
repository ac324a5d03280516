"""Headrace: declare streams, tables, SQL and endpoints in one project; it runs and serves them."""

from headrace.functions.marks import function as function

__version__ = "0.1.0"
