"""Positions of flows: read, lag, rewind, savepoints, upgrades."""
