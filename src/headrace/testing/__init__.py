"""The test kit for users: list source and sink, movable clock, project harness, real local services."""
