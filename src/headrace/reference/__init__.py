"""Generates docs/reference and the marked blocks of hand-written pages from the code: `make docs`."""
