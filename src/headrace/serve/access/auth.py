"""Who asks: API keys and signed tokens become grants.

A token that was seen is remembered with its grant until it expires, so that a caller who asks often is checked once.
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
_HOW = "send 'Authorization: Bearer TOKEN' or 'X-API-Key: KEY'; `headrace token create` makes one"


def token_of(authorization: str | None, api_key: str | None) -> str | None:
    """The token that a request's headers, or a call's metadata, show."""
    if authorization is not None:
        scheme, _, token = authorization.strip().partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise RequestError("bad-token", "the header Authorization is not 'Bearer TOKEN'", status=401, hint=_HOW)
        return token.strip()
    return api_key.strip() if api_key is not None else None


@dataclass(frozen=True)
class _KnownTokens:
    grant: Grant
    until: float


class Callers:
    """Everyone who may ask. One per process; `shared` is the file through which a node's processes share limits."""

    def __init__(
        self,
        spec: ServeSpec,
        project: str,
        *,
        root: Path = Path(),
        shared: Path | None = None,
    ) -> None:
        self.wanted = spec.auth.wanted
        self._keys = [(bytes.fromhex(key.sha256), key) for key in spec.auth.keys]
        self._limit = spec.limits.requests_per_second
        self._tokens = None if spec.auth.jwt is None else Tokens(spec.auth.jwt, project, root)
        self._rates = Rates(shared)
        self._known: dict[bytes, _KnownTokens] = {}
        self.anyone = None if self.wanted or self._limit is not None else self._anyone("")
        """What everybody may do who asks, where neither tokens nor limits are set."""

    def grant(self, token: str | None, address: str) -> Grant:
        """What the caller may do. A RequestError: who it is cannot be told (401), or it asks too often (429)."""
        if not self.wanted:
            return self._counted(self._anyone(address))
        try:
            known = self._find(token)
        except RequestError:
            if self._limit is not None:  # guessing counts as asking
                self._rates.take(f"address {address}", self._limit)
            raise
        return self._counted(known)

    def close(self) -> None:
        """Let go of what is shared."""
        self._rates.close()

    def _counted(self, grant: Grant) -> Grant:
        if grant.limit is not None:
            self._rates.take(grant.limited_as, grant.limit)
        return grant

    def _anyone(self, address: str) -> Grant:
        # callers without tokens may all see the same, so what was worked out for one serves all
        digest = address.encode() if self._limit is not None else b""
        known = self._known.get(digest)
        if known is None:
            grant = Grant(_ANYONE, frozenset(SCOPES), limit=self._limit, limited_as=f"address {address}")
            known = _KnownTokens(grant, float("inf"))
            self._remember(digest, known)
        return known.grant

    def _find(self, token: str | None) -> Grant:
        if not token:
            raise RequestError("no-token", "this needs a token", status=401, hint=_HOW)
        if len(token) > _LONGEST_TOKEN:
            raise RequestError("bad-token", "the token is too long to be one", status=401, hint=_HOW)
        digest = hashlib.sha256(token.encode(errors="surrogateescape")).digest()
        known = self._known.get(digest)
        if known is None or known.until <= time.time():
            known = self._checked(token, digest)
            self._remember(digest, known)
        return known.grant

    def _remember(self, digest: bytes, known: _KnownTokens) -> None:
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[digest] = known

    def _checked(self, token: str, digest: bytes) -> _KnownTokens:
        # all keys are looked at, whichever fits: the time it takes tells nothing
        fitting = [key for expected, key in self._keys if hmac.compare_digest(expected, digest)]
        if fitting:
            return _KnownTokens(_of_key(fitting[0], self._limit), float("inf"))
        if self._tokens is None:
            raise RequestError("bad-token", "the key is not known", status=401, hint=_HOW)
        claims = self._tokens.verified(token)
        until = float(claims["exp"]) + self._tokens.leeway
        return _KnownTokens(grant_of(claims, self._limit, digest.hex()), until)


class Tokens:
    """Signed tokens of one issuer. Which algorithm is right follows from the key, never from the token."""

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
        """The claims of a token that holds; a RequestError (401) says why one does not."""
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
            raise RequestError("token-expired", "the token has expired", status=401, hint="get a new one") from None
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise RequestError("bad-token", _reason(error), status=401, hint=_HOW) from None


def grant_of(claims: Mapping[str, Any], limit: float | None, identity: str) -> Grant:
    """What verified claims allow; claims that mean nothing are as bad as a wrong signature."""
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
        raise RequestError("bad-token", f"a claim of the token is wrong: {what}", status=401, hint=_HOW) from None


def _of_key(key: ApiKey, limit: float | None) -> Grant:
    rate = key.requests_per_second or limit
    tables = None if key.tables is None else frozenset(key.tables)
    return Grant(key.name, frozenset(key.scopes), key.endpoints, tables, rate, f"key {key.name}")


def _scopes(given: Any) -> frozenset[str]:
    return _names(given.split() if isinstance(given, str) else given, "scopes")


def _tables(given: Any) -> frozenset[str] | None:
    return None if given is None else _names(given, "tables")


def _names(given: Any, claim: str) -> frozenset[str]:
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise ValueError(f"'{claim}' is not a list of names")
    return frozenset(given)


def _endpoints(given: Any) -> dict[str, Access] | None:
    if given is None:
        return None
    if isinstance(given, list) and all(isinstance(name, str) for name in given):
        return {name: Access() for name in given}
    if not isinstance(given, dict):
        raise ValueError("'endpoints' is neither a list of names nor an object by name")
    return {name: Access() if access is None else Access.model_validate(access) for name, access in given.items()}


def _rate(given: Any, limit: float | None) -> float | None:
    if given is None:
        return limit
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < float("inf"):
        raise ValueError("'rps' is not a number above 0")
    return float(given)


def _reason(error: Exception) -> str:
    """Why a token does not hold: nothing of the token or of the key is in it."""
    match error:
        case jwt.ImmatureSignatureError():
            return "the token is not valid yet"
        case jwt.InvalidAudienceError():
            return "the token is for another audience"
        case jwt.InvalidIssuerError():
            return "the token is from another issuer"
        case jwt.MissingRequiredClaimError(claim=claim):
            return f"the token has no '{claim}'"
        case jwt.InvalidAlgorithmError():
            return "the token is signed with another algorithm"
        case jwt.InvalidSignatureError():
            return "the token's signature is wrong"
    return "neither a known key nor a signed token"


def _public_key(file: Path) -> tuple[Any, str]:
    try:
        key = load_pem_public_key(file.read_bytes())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a public key in PEM form"
        raise ProjectError(
            "bad-public-key", f"'serve.auth.jwt.public_key' cannot be used: {reason}", hint=f"look at {file}"
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
        f"'serve.auth.jwt.public_key' is a key of another kind: {type(key).__name__}",
        hint="RSA, elliptic curve P-256 and Ed25519 are known",
    )
