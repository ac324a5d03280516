"""Errors and retries that are common to all outside services."""

from __future__ import annotations

from headrace.core.errors import Exit, ProjectError
from headrace.core.runtime.backoff import Backoff

SERVICE_BACKOFF = Backoff(first=0.1, longest=5.0, jitter=(0.5, 1.0))
"""Between attempts to reach a service that is unavailable or busy."""


def service_unavailable(label: str, reason: str) -> ProjectError:
    """The service stayed unavailable: the flow is degraded until it is back."""
    return ProjectError(
        "service-away",
        f"{label} is unavailable: {reason}",
        hint="check that the service runs and can be reached; the flow resumes when it is back",
        exit_code=Exit.TRANSIENT,
    )


def access_denied(label: str, reason: str) -> ProjectError:
    """The service rejects the login, or the user lacks a privilege."""
    return ProjectError(
        "service-authentication",
        f"{label} denies access: {reason}",
        hint="check the name, password or token, and the privileges of this user",
    )


def untrusted_connection(label: str, reason: str) -> ProjectError:
    """No TLS connection can be established, or the server's certificate is not trusted."""
    return ProjectError(
        "service-tls",
        f"{label}: no trusted connection: {reason}",
        hint="check the files of `tls`, and that the server supports TLS",
    )


def request_refused(label: str, reason: str, hint: str) -> ProjectError:
    """The service refuses the request whatever the row: the project is at fault."""
    return ProjectError("service-refused", f"{label}: {reason}", hint=hint)
