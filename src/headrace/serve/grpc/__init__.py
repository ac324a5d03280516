"""gRPC: one common service of values that say their type, and a typed service per endpoint."""
