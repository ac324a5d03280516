"""Creates tokens for `headrace token create`. Any issuer with the same key can create equivalent ones."""

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
    """A random API key, and its SHA-256 for the project file."""
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
    """A token with these claims, and all its claims. The token is verified as a server would verify it."""
    spec = auth.jwt
    if spec is None:
        raise ProjectError(
            "no-jwt",
            "the project has no key to sign tokens with",
            hint='set serve.auth.jwt.secret, as in secret: "${secret:SERVE_SECRET}" (32 characters or more), or create '
            "an API key: headrace token create --api-key",
        )
    issued = int(now.timestamp())
    all_claims = {
        "aud": spec.audience or project,
        **({"iss": spec.issuer} if spec.issuer is not None else {}),
        "iat": issued,
        "exp": issued + max(1, int(expires.total_seconds())),
        **claims,
    }
    key, algorithm = _signing_key(spec, private_key)
    token = jwt.encode(all_claims, key, algorithm)
    _check(Tokens(spec, project, root), token)
    return token, all_claims


def claims_of(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The header and the claims of a token, without verification."""
    try:
        decoded = jwt.decode_complete(token, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise ProjectError(
            "bad-token", "this is not a signed token", hint="headrace.yaml says what an API key allows"
        ) from None
    return decoded["header"], decoded["payload"]


def _check(tokens: Tokens, token: str) -> None:
    try:
        tokens.verified(token)
    except RequestError as error:
        raise ProjectError(
            "key-mismatch", f"servers would reject this token: {error.message}", hint="check that the key pair matches"
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
        reason = error.strerror if isinstance(error, OSError) else "it is not an unencrypted private key in PEM form"
        raise ProjectError("bad-private-key", f"{private_key} cannot be used: {reason}") from None
    match key:
        case rsa.RSAPrivateKey():
            return key, "RS256"
        case ec.EllipticCurvePrivateKey():
            return key, "ES256"
        case ed25519.Ed25519PrivateKey():
            return key, "EdDSA"
    raise ProjectError("bad-private-key", f"{private_key} has an unsupported type: {type(key).__name__}")
