"""Authentication: turns API keys and signed tokens into grants. The grant's row filter is applied in `access.py`.

A verified token is cached with its grant until it expires, so that a frequent caller is verified once.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from pydantic import ValidationError

from headrace.core.errors import ProjectError, RequestError
from headrace.project.serving import Access, ApiKey, Jwt, ServeSpec
from headrace.serve.access.grants import SCOPES, Grant
from headrace.serve.access.limits import Rates

_REMEMBERED = 10_000
_LONGEST_TOKEN = 16_384
_ANYONE = "anyone"
_HOW = "send 'Authorization: Bearer TOKEN' or 'X-API-Key: KEY'; `headrace token create` creates a token"


def token_of(authorization: str | None, api_key: str | None) -> str | None:
    """The token in the headers of a request or the metadata of a call."""
    if authorization is not None:
        scheme, _, token = authorization.strip().partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise RequestError("bad-token", "the header Authorization is not 'Bearer TOKEN'", status=401, hint=_HOW)
        return token.strip()
    return api_key.strip() if api_key is not None else None


@dataclass(frozen=True)
class _VerifiedToken:
    grant: Grant
    until: float


class Callers:
    """Authenticates callers, one per process; `shared` is the file through which a node's processes share limits."""

    def __init__(
        self,
        spec: ServeSpec,
        project: str,
        *,
        root: Path = Path(),
        shared: Path | None = None,
    ) -> None:
        self.auth_required = spec.auth.wanted
        self._keys = [(bytes.fromhex(key.sha256), key) for key in spec.auth.keys]
        self._limit = spec.limits.requests_per_second
        self._tokens = None if spec.auth.jwt is None else Tokens(spec.auth.jwt, project, root)
        self._rates = Rates(shared)
        self._verified: dict[bytes, _VerifiedToken] = {}
        self.anyone = None if self.auth_required or self._limit is not None else self._anyone("")
        """The grant of every caller, where neither tokens nor limits are configured."""

    def grant(self, token: str | None, address: str) -> Grant:
        """The grant of a caller. RequestError: not authenticated (401), or too many requests (429)."""
        if not self.auth_required:
            return self._counted(self._anyone(address))
        try:
            grant = self._find(token)
        except RequestError:
            if self._limit is not None:  # failed attempts count as requests
                self._rates.take(f"address {address}", self._limit)
            raise
        return self._counted(grant)

    def close(self) -> None:
        self._rates.close()

    def _counted(self, grant: Grant) -> Grant:
        if grant.limit is not None:
            self._rates.take(grant.limited_as, grant.limit)
        return grant

    def _anyone(self, address: str) -> Grant:
        # callers without tokens see the same, so that one cached grant serves all
        digest = address.encode() if self._limit is not None else b""
        verified = self._verified.get(digest)
        if verified is None:
            grant = Grant(_ANYONE, frozenset(SCOPES), limit=self._limit, limited_as=f"address {address}")
            verified = _VerifiedToken(grant, float("inf"))
            self._remember(digest, verified)
        return verified.grant

    def _find(self, token: str | None) -> Grant:
        if not token:
            raise RequestError("no-token", "a token is required", status=401, hint=_HOW)
        if len(token) > _LONGEST_TOKEN:
            raise RequestError("bad-token", "the token is too long", status=401, hint=_HOW)
        digest = hashlib.sha256(token.encode(errors="surrogateescape")).digest()
        verified = self._verified.get(digest)
        if verified is None or verified.until <= time.time():
            verified = self._checked(token, digest)
            self._remember(digest, verified)
        return verified.grant

    def _remember(self, digest: bytes, verified: _VerifiedToken) -> None:
        if len(self._verified) >= _REMEMBERED:
            self._verified.clear()
        self._verified[digest] = verified

    def _checked(self, token: str, digest: bytes) -> _VerifiedToken:
        # compare with all keys, so that the time does not depend on which key matches
        matching = [key for expected, key in self._keys if hmac.compare_digest(expected, digest)]
        if matching:
            return _VerifiedToken(_of_key(matching[0], self._limit), float("inf"))
        if self._tokens is None:
            raise RequestError("bad-token", "the key is not valid", status=401, hint=_HOW)
        claims = self._tokens.verified(token)
        until = float(claims["exp"]) + self._tokens.leeway
        return _VerifiedToken(grant_of(claims, self._limit, digest.hex()), until)


class Tokens:
    """Signed tokens of one issuer. The key decides the algorithm, never the token."""

    def __init__(self, spec: Jwt, project: str, root: Path) -> None:
        self._audience = spec.audience or project
        self._issuer = spec.issuer
        self.leeway = spec.leeway.total_seconds()
        self._key: Any
        if spec.secret is not None:
            self._key, self._algorithm = spec.secret.get_secret_value(), "HS256"
        else:
            self._key, self._algorithm = _public_key(root / str(spec.public_key))

    def verified(self, token: str) -> dict[str, Any]:
        """The claims of a valid token; RequestError (401) when it is not valid."""
        try:
            return jwt.decode(
                token,
                self._key,
                algorithms=[self._algorithm],
                audience=self._audience,
                issuer=self._issuer,
                leeway=self.leeway,
                options={"require": ["exp", "aud"], "enforce_minimum_key_length": True},
            )
        except jwt.ExpiredSignatureError:
            raise RequestError("token-expired", "the token has expired", status=401, hint="get a new token") from None
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise RequestError("bad-token", _reason(error), status=401, hint=_HOW) from None


def grant_of(claims: Mapping[str, Any], limit: float | None, identity: str) -> Grant:
    """The grant of verified claims; RequestError when a claim is not valid."""
    try:
        return Grant(
            name=str(claims.get("sub") or claims.get("jti") or "token"),
            scopes=_scopes(claims.get("scopes", ["read"])),
            endpoints=_endpoints(claims.get("endpoints")),
            tables=_tables(claims.get("tables")),
            limit=_rate(claims.get("rps"), limit),
            limited_as=f"token {identity}",
        )
    except (ValueError, ValidationError) as error:
        what = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise RequestError("bad-token", f"a claim of the token is not valid: {what}", status=401, hint=_HOW) from None


def _of_key(key: ApiKey, limit: float | None) -> Grant:
    rate = key.requests_per_second or limit
    tables = None if key.tables is None else frozenset(key.tables)
    return Grant(key.name, frozenset(key.scopes), key.endpoints, tables, rate, f"key {key.name}")


def _scopes(claim: Any) -> frozenset[str]:
    return _names(claim.split() if isinstance(claim, str) else claim, "scopes")


def _tables(claim: Any) -> frozenset[str] | None:
    return None if claim is None else _names(claim, "tables")


def _names(names: Any, claim: str) -> frozenset[str]:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"'{claim}' is not a list of names")
    return frozenset(names)


def _endpoints(claim: Any) -> dict[str, Access] | None:
    if claim is None:
        return None
    if isinstance(claim, list) and all(isinstance(name, str) for name in claim):
        return {name: Access() for name in claim}
    if not isinstance(claim, dict):
        raise ValueError("'endpoints' is neither a list of names nor an object by name")
    return {name: Access() if access is None else Access.model_validate(access) for name, access in claim.items()}


def _rate(claim: Any, limit: float | None) -> float | None:
    if claim is None:
        return limit
    if isinstance(claim, bool) or not isinstance(claim, int | float) or not 0 < claim < float("inf"):
        raise ValueError("'rps' is not a number above 0")
    return float(claim)


def _reason(error: Exception) -> str:
    """Why a token is not valid, without any part of the token or the key."""
    match error:
        case jwt.ImmatureSignatureError():
            return "the token is not valid yet"
        case jwt.InvalidAudienceError():
            return "the token is for another audience"
        case jwt.InvalidIssuerError():
            return "the token is from another issuer"
        case jwt.MissingRequiredClaimError(claim=claim):
            return f"the token has no claim '{claim}'"
        case jwt.InvalidAlgorithmError():
            return "the token is signed with another algorithm"
        case jwt.InvalidSignatureError():
            return "the signature of the token is not valid"
    return "the token is neither a known key nor a signed token"


def _public_key(file: Path) -> tuple[Any, str]:
    try:
        key = load_pem_public_key(file.read_bytes())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a public key in PEM form"
        raise ProjectError(
            "bad-public-key", f"'serve.auth.jwt.public_key' cannot be used: {reason}", hint=f"check {file}"
        ) from None
    match key:
        case rsa.RSAPublicKey():
            return key, "RS256"
        case ec.EllipticCurvePublicKey(curve=ec.SECP256R1()):
            return key, "ES256"
        case ed25519.Ed25519PublicKey():
            return key, "EdDSA"
    raise ProjectError(
        "bad-public-key",
        f"'serve.auth.jwt.public_key' has an unsupported type: {type(key).__name__}",
        hint="RSA, elliptic curve P-256 and Ed25519 are supported",
    )
