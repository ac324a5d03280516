"""Status, metrics, probes and housekeeping of a running engine."""
