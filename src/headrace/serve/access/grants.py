"""What a caller may do: scopes, what it may see of which endpoints, and which tables it may write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.core.errors import RequestError
from headrace.project.serving import Access

SCOPES = ("read", "events", "sql", "write", "admin")
_WHOLE = Access()


@dataclass(frozen=True, eq=False)
class Grant:
    """What one token allows. `admin` includes the other scopes, but shows no more endpoints."""

    name: str
    scopes: frozenset[str]
    endpoints: Mapping[str, Access] | None = None
    """None: all of them, whole."""
    tables: frozenset[str] | None = None
    """Tables that may be written, with the scope for it; None: all."""
    limit: float | None = None
    """Requests per second."""
    limited_as: str = ""
    """Who shares that limit."""
    kept: dict[str, Any] = field(default_factory=dict, repr=False)
    """What was worked out for this grant, forgotten with it."""

    def allows(self, scope: str) -> bool:
        """Whether it has that scope."""
        return scope in self.scopes or "admin" in self.scopes

    def check(self, scope: str) -> None:
        """A RequestError unless it has that scope."""
        if not self.allows(scope):
            raise RequestError(
                "wrong-scope",
                f"this token does not allow '{scope}'",
                status=403,
                hint=f"it allows: {', '.join(sorted(self.scopes)) or 'nothing'}",
            )

    def may(self, endpoint: str) -> Access | None:
        """What it may see of an endpoint; None: nothing."""
        return _WHOLE if self.endpoints is None else self.endpoints.get(endpoint)

    def may_write(self, table: str) -> bool:
        """Whether it may write a table."""
        return self.allows("write") and (self.tables is None or table in self.tables)
