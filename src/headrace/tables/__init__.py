"""Kinds of tables: where keyed, changing rows come from. One kind per file."""
