"""Making tokens: what `headrace token create` gives, and what any issuer with the same key could."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from headrace.core.errors import ProjectError, RequestError
from headrace.project.serving import AuthSpec, Jwt
from headrace.serve.access.auth import Tokens

_KEY_BYTES = 32


def new_api_key() -> tuple[str, str]:
    """A key nobody can guess, and its SHA-256 for the project file."""
    key = f"hr_{secrets.token_urlsafe(_KEY_BYTES)}"
    return key, hashlib.sha256(key.encode()).hexdigest()


def signed(
    auth: AuthSpec,
    project: str,
    root: Path,
    claims: Mapping[str, Any],
    *,
    now: datetime,
    expires: timedelta,
    private_key: Path | None = None,
) -> tuple[str, dict[str, Any]]:
    """A token with these claims, and all claims that are in it. It is checked as a server would."""
    spec = auth.jwt
    if spec is None:
        raise ProjectError(
            "no-jwt",
            "the project has no key that tokens are signed with",
            hint='set serve.auth.jwt.secret, as in secret: "${secret:SERVE_SECRET}" (32 characters or more), or make '
            "an API key: headrace token create --api-key",
        )
    issued = int(now.timestamp())
    whole = {
        "aud": spec.audience or project,
        **({"iss": spec.issuer} if spec.issuer is not None else {}),
        "iat": issued,
        "exp": issued + max(1, int(expires.total_seconds())),
        **claims,
    }
    key, algorithm = _signing_key(spec, private_key)
    token = jwt.encode(whole, key, algorithm)
    _check(Tokens(spec, project, root), token)
    return token, whole


def claims_of(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and claims of a token, whether or not it holds."""
    try:
        found = jwt.decode_complete(token, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise ProjectError(
            "bad-token", "this is no signed token", hint="an API key says nothing; what it allows is in headrace.yaml"
        ) from None
    return found["header"], found["payload"]


def _check(tokens: Tokens, token: str) -> None:
    try:
        tokens.verified(token)
    except RequestError as error:
        raise ProjectError(
            "key-mismatch", f"servers would refuse this token: {error.message}", hint="does the key fit the public one?"
        ) from None


def _signing_key(spec: Jwt, private_key: Path | None) -> tuple[Any, str]:
    if spec.secret is not None:
        return spec.secret.get_secret_value(), "HS256"
    if private_key is None:
        raise ProjectError(
            "no-private-key",
            "tokens of this project are signed with a private key, which is not in the project",
            hint="name its file: --private-key FILE",
        )
    try:
        key = load_pem_private_key(private_key.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no private key in PEM form without password"
        raise ProjectError("bad-private-key", f"{private_key} cannot be used: {reason}") from None
    match key:
        case rsa.RSAPrivateKey():
            return key, "RS256"
        case ec.EllipticCurvePrivateKey():
            return key, "ES256"
        case ed25519.Ed25519PrivateKey():
            return key, "EdDSA"
    raise ProjectError("bad-private-key", f"{private_key} is a key of another kind: {type(key).__name__}")
