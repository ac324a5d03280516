"""What a token allows: scopes, endpoints with their row filters, tables. `access.py` applies the row filters."""

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
    """What one token allows. `admin` includes the other scopes, but no further endpoints."""

    name: str
    scopes: frozenset[str]
    endpoints: Mapping[str, Access] | None = None
    """Per endpoint the visible columns and the row filter; None: all endpoints without restriction."""
    tables: frozenset[str] | None = None
    """Tables and streams that the token may write, with the scope `write`; None: all."""
    limit: float | None = None
    """Requests per second."""
    limited_as: str = ""
    """The name under which requests are counted for the limit."""
    cache: dict[str, Any] = field(default_factory=dict, repr=False)
    """The EndpointAccess objects of this grant, by endpoint name."""

    def allows(self, scope: str) -> bool:
        return scope in self.scopes or "admin" in self.scopes

    def check(self, scope: str) -> None:
        """RequestError unless the token has the scope."""
        if not self.allows(scope):
            raise RequestError(
                "wrong-scope",
                f"this token does not allow '{scope}'",
                status=403,
                hint=f"it allows: {', '.join(sorted(self.scopes)) or 'nothing'}",
            )

    def may(self, endpoint: str) -> Access | None:
        """What the token may see of an endpoint; None: nothing."""
        return _WHOLE if self.endpoints is None else self.endpoints.get(endpoint)

    def may_write(self, table: str) -> bool:
        return self.allows("write") and (self.tables is None or table in self.tables)
