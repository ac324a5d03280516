"""Inputs of flows: read, decode, backfill, filter by event time, run processors."""
