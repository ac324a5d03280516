"""Turns a project into a frozen plan that `run` and `explain` both interpret."""
