"""Runs a plan on Spark: sessions, checkpoints, progress, dead letters, and the jars all that needs."""
