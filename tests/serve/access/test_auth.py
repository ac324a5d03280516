"""Who may ask: keys, signed tokens, limits."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from tests.serve.kit import SECRET, api_key

from headrace.core.errors import ProjectError, RequestError
from headrace.project.serving import ServeSpec
from headrace.serve.access.auth import Callers, token_of
from headrace.serve.access.limits import Rates


def callers(root: Path = Path(), **auth: Any) -> Callers:
    return Callers(ServeSpec.model_validate({"auth": auth}), "cinema", root=root)


def signed(key: Any = SECRET, algorithm: str = "HS256", **claims: Any) -> str:
    known = {"aud": "cinema", "exp": int(time.time()) + 60, **claims}
    return jwt.encode({name: value for name, value in known.items() if value is not None}, key, algorithm)


def refused(found: Callers, token: str | None) -> tuple[str, int]:
    with pytest.raises(RequestError) as error:
        found.grant(token, "10.0.0.1")
    assert not token or token not in str(error.value)
    assert SECRET not in str(error.value)
    return error.value.code, error.value.status


def test_without_auth_everybody_here_may_do_everything() -> None:
    grant = callers().grant(None, "127.0.0.1")
    assert grant.endpoints is None
    assert all(grant.allows(scope) for scope in ("read", "events", "sql", "admin"))


def test_a_key_gets_what_the_project_says() -> None:
    access = {"films": {"fields": ["id"], "filter": {"region": "EU"}}}
    found = callers(keys=[api_key("board", "k1", endpoints=access), api_key("ops", "k2", scopes=["admin"])])
    board, ops = found.grant("k1", ""), found.grant("k2", "")
    assert (board.name, board.scopes) == ("board", {"read"})
    films = board.may("films")
    assert films is not None
    assert films.fields == ["id"]
    assert board.may("visits") is None
    assert ops.allows("sql")
    assert found.grant("k1", "") is board
    with pytest.raises(RequestError) as error:
        board.check("sql")
    assert (error.value.code, error.value.status) == ("wrong-scope", 403)


@pytest.mark.parametrize(
    ("header", "key", "token"),
    [("Bearer abc", None, "abc"), ("bearer  abc ", None, "abc"), (None, "abc", "abc"), (None, None, None)],
)
def test_where_a_token_is_found(header: str | None, key: str | None, token: str | None) -> None:
    assert token_of(header, key) == token


@pytest.mark.parametrize("header", ["Basic abc", "abc", "Bearer", "Bearer ", ""])
def test_a_header_that_is_none(header: str) -> None:
    with pytest.raises(RequestError, match="Bearer TOKEN"):
        token_of(header, None)


def test_a_signed_token_says_what_it_allows() -> None:
    claims = {"sub": "ada", "scopes": ["read", "sql"], "endpoints": {"films": {"fields": ["id"]}, "notes": None}}
    grant = callers(jwt={"secret": SECRET}).grant(signed(**claims, rps=5), "")
    assert (grant.name, grant.scopes, grant.limit) == ("ada", {"read", "sql"}, 5.0)
    assert grant.endpoints is not None
    assert list(grant.endpoints) == ["films", "notes"]
    assert grant.endpoints["notes"].fields is None


def without_signature(**claims: Any) -> str:
    parts = [{"alg": "none", "typ": "JWT"}, {"aud": "cinema", "exp": int(time.time()) + 60, **claims}]
    return ".".join(base64.urlsafe_b64encode(json.dumps(one).encode()).decode().rstrip("=") for one in parts) + "."


def tampered() -> str:
    head, _, tail = signed(scopes=["read"]).split(".")
    body = base64.urlsafe_b64encode(json.dumps({"aud": "cinema", "exp": 9**12, "scopes": ["admin"]}).encode())
    return f"{head}.{body.decode().rstrip('=')}.{tail}"


def signed_about(**seconds: int) -> str:
    """Times are those of the moment in which it is made: a test may run long after it was collected."""
    return signed(**{claim: int(time.time()) + away for claim, away in seconds.items()})


BAD_TOKENS = {
    "expired": (lambda: signed_about(exp=-60), "token-expired"),
    "no expiry": (lambda: signed(exp=None), "bad-token"),
    "odd expiry": (lambda: signed(exp="soon"), "bad-token"),
    "not yet": (lambda: signed_about(nbf=600), "bad-token"),
    "other audience": (lambda: signed(aud="shop"), "bad-token"),
    "no audience": (lambda: signed(aud=None), "bad-token"),
    "other secret": (lambda: signed("another secret of thirty-two characters"), "bad-token"),
    "other algorithm": (lambda: signed(SECRET * 2, "HS512"), "bad-token"),
    "no algorithm": (without_signature, "bad-token"),
    "tampered": (tampered, "bad-token"),
    "nothing": (lambda: "", "no-token"),
    "rubbish": (lambda: "a.b.c", "bad-token"),
    "words": (lambda: "\N{SNOWMAN} \x00", "bad-token"),
    "endless": (lambda: "a" * 100_000, "bad-token"),
    "scopes of numbers": (lambda: signed(scopes=[1]), "bad-token"),
    "endpoints of text": (lambda: signed(endpoints="films"), "bad-token"),
    "odd access": (lambda: signed(endpoints={"films": {"columns": ["id"]}}), "bad-token"),
    "odd rate": (lambda: signed(rps="many"), "bad-token"),
}


@pytest.mark.parametrize("case", BAD_TOKENS)
def test_a_token_that_does_not_hold(case: str) -> None:
    make, code = BAD_TOKENS[case]
    assert refused(callers(jwt={"secret": SECRET}), make()) == (code, 401)


def test_no_token_where_one_is_needed() -> None:
    assert refused(callers(jwt={"secret": SECRET}), None) == ("no-token", 401)


def test_issuer_and_leeway() -> None:
    found = callers(jwt={"secret": SECRET, "issuer": "us", "audience": "api", "leeway": "1min"})
    assert found.grant(signed(iss="us", aud=["api", "x"], exp=int(time.time()) - 5), "").name == "token"
    assert refused(found, signed(iss="them", aud="api"))[0] == "bad-token"


def test_a_token_that_was_good_expires() -> None:
    found = callers(jwt={"secret": SECRET, "leeway": "1ms"})
    token = signed(exp=int(time.time()) + 1)
    assert found.grant(token, "") is found.grant(token, "")
    deadline = time.monotonic() + 10
    while time.time() <= int(jwt.decode(token, options={"verify_signature": False})["exp"]) + 0.01:
        assert time.monotonic() < deadline
    assert refused(found, token) == ("token-expired", 401)


PRIVATE_KEYS: dict[str, Any] = {
    "RS256": lambda: rsa.generate_private_key(65537, 2048),
    "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate,
}


def pem(key: Any) -> bytes:
    found: bytes = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return found


@pytest.mark.parametrize("algorithm", PRIVATE_KEYS)
def test_the_kind_of_the_public_key_is_the_algorithm(algorithm: str, tmp_path: Path) -> None:
    key = PRIVATE_KEYS[algorithm]()
    (tmp_path / "key.pem").write_bytes(pem(key))
    found = callers(tmp_path, jwt={"public_key": "key.pem"})
    assert found.grant(signed(key, algorithm, sub="ada"), "").name == "ada"
    # the public key is no secret: a token signed with it must not pass
    forged = without_signature(scopes=["admin"])
    assert refused(found, forged) == ("bad-token", 401)
    assert refused(found, signed("x" * 40)) == ("bad-token", 401)


@pytest.mark.parametrize("content", [b"", b"no key", None])
def test_a_public_key_that_cannot_be_used(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "key.pem").write_bytes(content)
    with pytest.raises(ProjectError) as error:
        callers(tmp_path, jwt={"public_key": "key.pem"})
    assert error.value.code == "bad-public-key"


def test_a_key_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_bytes(pem(ec.generate_private_key(ec.SECP384R1())))
    with pytest.raises(ProjectError, match="unsupported type"):
        callers(tmp_path, jwt={"public_key": "key.pem"})


def test_the_limit_is_one_for_all_processes_of_a_node(tmp_path: Path) -> None:
    now = [1000.0]
    first, second = (Rates(tmp_path / "limits", clock=lambda: now[0]) for _ in range(2))
    for rates in [first, second] * 2:
        rates.take("ada", 4)
    with pytest.raises(RequestError) as error:
        second.take("ada", 4)
    assert (error.value.code, error.value.status) == ("rate-limited", 429)
    assert error.value.retry_after == pytest.approx(0.25)
    first.take("bob", 4)
    now[0] += 0.25
    first.take("ada", 4)
    with pytest.raises(RequestError):
        second.take("ada", 4)
    now[0] = 5.0  # the machine was started anew
    first.take("ada", 4)
    first.close()
    second.close()


def test_a_slow_rate_lets_one_through() -> None:
    now = [0.0]
    rates = Rates(clock=lambda: now[0])
    rates.take("ada", 0.1)
    with pytest.raises(RequestError) as error:
        rates.take("ada", 0.1)
    assert error.value.retry_after == pytest.approx(10)
    now[0] = 10.0
    rates.take("ada", 0.1)


def test_many_callers_share_the_file_without_locking_each_other_out() -> None:
    rates = Rates(clock=lambda: 1.0)
    for number in range(6_000):
        rates.take(f"caller {number}", 1)


def test_a_key_may_have_a_limit_of_its_own_and_guessing_counts() -> None:
    spec = {"limits": {"requests_per_second": 1}, "auth": {"keys": [api_key("a", "k1", requests_per_second=3)]}}
    found = Callers(ServeSpec.model_validate(spec), "cinema")
    for _ in range(3):
        found.grant("k1", "10.0.0.2")
    assert refused(found, "k1") == ("rate-limited", 429)
    assert refused(found, "guess") == ("bad-token", 401)
    assert refused(found, "another") == ("rate-limited", 429)
