"""Connections to PostgreSQL: options, parameters of libpq, and errors of the server."""

from __future__ import annotations

import pickle
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pydantic import ValidationError

from headrace.core.context import Context
from headrace.core.errors import ProjectError
from headrace.sinks.postgres.server import SinkServer
from headrace.systems.postgres.connection import PostgresConnection
from headrace.systems.postgres.server import (
    connection_refused,
    is_denied,
    is_transient,
    lacks_database,
    one_line,
    service_error,
    tls_options,
)
from headrace.systems.postgres.tables import TableServer, explained
from headrace.systems.tls import TlsTexts

HERE = Context(Path("/project"), "state")
NOWHERE = {"url": "postgresql://127.0.0.1:1/shop", "username": "me", "password": "s3cret"}


def connection(**options: Any) -> PostgresConnection:
    return PostgresConnection.model_validate({**NOWHERE, **options})


def error_of(state: str) -> psycopg.Error:
    return psycopg.errors.lookup(state)("said\n by the server")


def test_addresses_are_secret_and_shown_without_login() -> None:
    for wrong in ("mysql://host/shop", "postgresql:///shop", "host:5432"):
        with pytest.raises(ValidationError):
            connection(url=wrong)
    made = connection(url="postgresql://me:s3cret@host:5432/shop")
    assert made.address == "host:5432/shop"
    server = TableServer("label", **made.server_parameters(HERE, timedelta(seconds=1)))
    assert "s3cret" not in repr(made) + repr(server)
    assert server.options["connect_timeout"] == 2
    assert (server.options["user"], server.options["password"]) == ("me", "s3cret")
    assert pickle.loads(pickle.dumps(server)) == server  # noqa: S301 — as it goes to the workers


def test_parameters_of_tls() -> None:
    paths = {"ca": "ca.pem", "certificate": "me.pem", "key": "key.pem"}
    assert tls_options(None, {}) == {}
    assert tls_options(TlsTexts(), {}) == {"sslmode": "verify-full", "sslrootcert": "system"}
    assert tls_options(TlsTexts(verify=False), {}) == {"sslmode": "require"}
    assert tls_options(TlsTexts(ca="a", certificate="b", key="c"), paths) == {
        "sslmode": "verify-full", "sslrootcert": "ca.pem", "sslcert": "me.pem", "sslkey": "key.pem",
    }  # fmt: skip


def test_refused_connections() -> None:
    def code_of(text: str) -> str | None:
        problem = connection_refused("label", psycopg.OperationalError(text))
        return problem and problem.code

    assert code_of('FATAL:  password authentication failed for user "me"') == "service-authentication"
    assert code_of("server does not support SSL, but SSL was required") == "service-tls"
    assert code_of("Connection refused") is None
    assert lacks_database(psycopg.OperationalError('FATAL:  database "shop" does not exist'))


def test_errors_of_a_statement() -> None:
    assert all(is_transient(error_of(state)) for state in ("08006", "53300", "57P01", "40001", "55P03"))
    assert not any(is_transient(error_of(state)) for state in ("57014", "22003"))
    assert [state for state in ("28P01", "42501", "42P01") if is_denied(error_of(state))] == ["28P01", "42501"]
    codes = {state: service_error("label", error_of(state)) for state in ("57014", "57P03", "42501", "22003")}
    assert {state: problem and problem.code for state, problem in codes.items()} == {
        "57014": "service-away", "57P03": "service-away", "42501": "service-authentication", "22003": None,
    }  # fmt: skip
    assert one_line(error_of("22003")) == "said; by the server"


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ("42P01", "service-away"),
        ("55006", "slot-in-use"),
        ("42501", "service-authentication"),
        ("22003", "table-refused"),
    ],
)
def test_errors_of_tables(state: str, code: str) -> None:
    with pytest.raises(ProjectError) as caught, explained("label"):
        raise error_of(state)
    assert caught.value.code == code


@pytest.mark.parametrize("kind", [TableServer, SinkServer])
def test_a_server_that_is_unavailable(kind: Any) -> None:
    server = kind("label", **connection().server_parameters(HERE, timedelta(seconds=1)))
    with pytest.raises(ProjectError) as caught:
        server.connect()
    assert caught.value.code == "service-away"
    assert "s3cret" not in str(caught.value)


def test_a_database_that_does_not_exist_has_the_code_of_its_family() -> None:
    parameters = connection().server_parameters(HERE, timedelta(seconds=1))
    assert TableServer("label", **parameters).missing_database("why").code == "postgres-missing"
    assert SinkServer("label", **parameters).missing_database("why").code == "sink-missing"
