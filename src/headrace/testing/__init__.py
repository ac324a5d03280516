"""The test kit for users: list source and sink, movable clock, project and view harness, real local services."""

from headrace.testing.views import ViewHarness

__all__ = ["ViewHarness"]
