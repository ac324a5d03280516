"""Replies that sinks do not expect from an HTTP server."""

from __future__ import annotations

from headrace.core.errors import ProjectError
from headrace.systems.http.client import HttpReply


def refusal(label: str, reply: HttpReply) -> ProjectError:
    """The error for a reply that is neither a success nor about a single row."""
    if reply.redirects:
        return ProjectError(
            "sink-refused", f"{label} redirects to another address: {reply.text}", hint="write the final address"
        )
    return ProjectError(
        "sink-refused", f"{label} refused what was sent: {reply.text}", hint="check the address and the server's log"
    )
