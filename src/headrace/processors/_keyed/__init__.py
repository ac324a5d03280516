"""Shared by the processors that keep state by key."""
