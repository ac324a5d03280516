"""`headrace token`: what it makes is what servers take."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from headrace.core.endpoints import Endpoint
from headrace.core.schema import from_ddl
from headrace.log.folder import LogFolder
from headrace.project.serving import ServeSpec
from headrace.serve.access.auth import Callers

Run = Callable[..., Any]
SECRET = "a secret of at least thirty-two characters"
PROJECT = """\
project: cinema
serve:
  auth:
    jwt: {secret: "${secret:SERVE_SECRET}"}
"""


@pytest.fixture
def cinema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SERVE_SECRET", SECRET)
    (tmp_path / "headrace.yaml").write_text(PROJECT, encoding="utf-8")
    films = Endpoint("films", from_ddl("id bigint, title string, region string"), key=("id",))
    LogFolder(tmp_path / ".headrace" / "log").define(films)
    return tmp_path


def callers(**auth: Any) -> Callers:
    return Callers(ServeSpec.model_validate({"auth": auth}), "cinema")


def test_a_token_that_servers_take(cinema: Path, headrace: Run) -> None:
    narrow = ["--endpoint", "films=id,title", "--field", "films.region", "--filter", 'films={"region": "EU"}']
    ran = headrace("token", "create", cinema, *narrow, "--scope", "read", "--scope", "sql", "--name", "ada")
    assert ran.code == 0
    (token,) = ran.out.splitlines()
    assert "allows read, sql of films" in ran.err
    grant = callers(jwt={"secret": SECRET}).grant(token, "")
    assert (grant.name, grant.scopes) == ("ada", {"read", "sql"})
    access = grant.may("films")
    assert access is not None
    assert (access.fields, access.filter) == (["id", "title", "region"], {"region": "EU"})
    assert grant.may("visits") is None
    assert SECRET not in ran.out + ran.err


def test_it_expires_when_it_should(cinema: Path, headrace: Run) -> None:
    data = headrace("token", "create", cinema, "--expires", "2h", "--rps", "5", "--json").data
    claims = jwt.decode(data["token"], SECRET, ["HS256"], audience="cinema")
    assert claims == data["claims"]
    assert claims["rps"] == 5
    assert abs(claims["exp"] - time.time() - 7200) < 60


def test_an_api_key_and_its_entry(cinema: Path, headrace: Run) -> None:
    ran = headrace("token", "create", cinema, "--api-key", "--name", "board", "--endpoint", "films")
    key = ran.out.strip()
    entry = yaml.safe_load(ran.err)["serve"]["auth"]["keys"][0]
    assert entry["sha256"] == hashlib.sha256(key.encode()).hexdigest()
    assert callers(keys=[entry]).grant(key, "").name == "board"
    data = headrace("token", "create", cinema, "--api-key", "--json").data
    assert data["entry"]["scopes"] == ["read"]
    assert data["key"] != key


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--scope", "raed"], "usage"),
        (["--filter", "films"], "usage"),
        (["--filter", "films=[1]"], "usage"),
        (["--field", "films"], "usage"),
        (["--expires", "soon"], "usage"),
        (["--rps", "0"], "usage"),
        (["--set", "serve.auth.jwt=null"], "no-jwt"),
    ],
)
def test_what_cannot_be_made(arguments: list[str], code: str, cinema: Path, headrace: Run) -> None:
    ran = headrace("token", "create", cinema, *arguments, "--json")
    assert ran.error["error"]["code"] == code
    assert not ran.out


def test_what_does_not_fit_the_endpoints_is_told(cinema: Path, headrace: Run) -> None:
    arguments = ["--endpoint", "film", "--endpoint", "films=nme", "--filter", 'films={"reigon": "EU"}']
    said = headrace("token", "create", cinema, *arguments).err
    assert "endpoint 'film' does not exist yet; did you mean 'films'?" in said
    assert "'films' has no column 'nme'" in said
    assert "has no column 'reigon'" in said


def test_show_says_what_is_in_it_and_whether_it_holds(cinema: Path, headrace: Run) -> None:
    token = headrace("token", "create", cinema, "--name", "ada").out.strip()
    good = headrace("token", "show", token, "--project", cinema, "--json")
    assert (good.code, good.data["holds"], good.data["claims"]["sub"]) == (0, True, "ada")
    bad = headrace("token", "show", token[:-4] + "AAAA", "--project", cinema, "--json")
    assert (bad.code, bad.data["holds"]) == (1, False)
    assert bad.data["reasons"] == ["the signature of the token is not valid"]
    misfit = headrace("token", "create", cinema, "--filter", 'films={"reigon": "EU"}').out.strip()
    assert "reigon" in headrace("token", "show", misfit, "--project", cinema).err
    assert headrace("token", "show", "rubbish", "--project", cinema, "--json").error["error"]["code"] == "bad-token"


def test_a_private_key_signs_where_the_project_has_the_public_one(cinema: Path, headrace: Run) -> None:
    keys = [ed25519.Ed25519PrivateKey.generate() for _ in range(2)]
    for name, key in zip(("good.pem", "other.pem"), keys, strict=True):
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        (cinema / name).write_bytes(key.private_bytes(*form))
    public = (
        keys[0].public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    (cinema / "public.pem").write_bytes(public)
    (cinema / "headrace.yaml").write_text("project: cinema\nserve: {auth: {jwt: {public_key: public.pem}}}\n")
    token = headrace("token", "create", cinema, "--private-key", cinema / "good.pem").out.strip()
    assert headrace("token", "show", token, "--project", cinema).code == 0
    codes = {
        "no-private-key": [],
        "key-mismatch": ["--private-key", cinema / "other.pem"],
        "bad-private-key": ["--private-key", cinema / "public.pem"],
    }
    for code, arguments in codes.items():
        ran = headrace("token", "create", cinema, *arguments, "--json")
        assert json.loads(ran.err)["error"]["code"] == code


def test_other_machines_are_served_only_with_auth(tmp_path: Path, headrace: Run) -> None:
    (tmp_path / "headrace.yaml").write_text("project: cinema\nserve: {host: 0.0.0.0}\n")
    assert headrace("lint", tmp_path, "--json").error["error"]["code"] == "serve-unguarded"
