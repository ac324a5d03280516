"""gRPC: one common service with self-describing values, and a typed service per endpoint."""
