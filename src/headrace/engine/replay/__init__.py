"""Replay of dead letters and of archives."""
