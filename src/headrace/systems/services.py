"""What is said of a service that a component depends on."""

from __future__ import annotations

from headrace.core.errors import Exit, ProjectError


def service_away(label: str, why: str) -> ProjectError:
    """For a service that stays away: the flow is degraded and goes on when it is back."""
    return ProjectError(
        "service-away",
        f"{label} is away: {why}",
        hint="check that the service runs and can be reached; the flow goes on by itself when it is back",
        exit_code=Exit.TRANSIENT,
    )


def not_let_in(label: str, said: str) -> ProjectError:
    """For a service that does not know us, or does not let us do what we ask for."""
    return ProjectError(
        "service-authentication",
        f"{label} does not let us in: {said}",
        hint="check the name, password or token, and what this user may do",
    )


def not_trusted(label: str, said: str) -> ProjectError:
    """For a connection that is not safe."""
    return ProjectError(
        "service-tls",
        f"{label}: no trusted connection: {said}",
        hint="check the files of `tls`, and that the server speaks TLS",
    )


def wrongly_asked(label: str, said: str, hint: str) -> ProjectError:
    """For a question that cannot be answered whatever the row: the project is at fault."""
    return ProjectError("service-refused", f"{label}: {said}", hint=hint)
