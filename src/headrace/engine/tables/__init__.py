"""Table logs as inputs of flows."""
