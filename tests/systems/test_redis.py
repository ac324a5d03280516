"""Connections to Redis: options, arguments of the client library, and errors of the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis
from pydantic import ValidationError

from headrace.core.context import Context
from headrace.core.errors import ProjectError
from headrace.systems.redis.client import RedisClient, check_access, connection_arguments, is_transient
from headrace.systems.redis.connection import RedisConnection

HERE = Context(Path("/project"), "state")


def connection(**options: Any) -> RedisConnection:
    return RedisConnection.model_validate({"url": "redis://host", **options})


def test_options_that_are_refused() -> None:
    for options in (
        {"url": "http://host"},
        {"url": "redis://"},
        {"url": "redis://me:word@host"},
        {"url": "redis://host/shop"},
        {"username": "me"},
        {"tls": {"certificate": "me.pem", "key": "key.pem"}},
    ):
        with pytest.raises(ValidationError):
            connection(**options)


def test_arguments_of_the_client_library() -> None:
    made = connection(url="rediss://host:7000/3", username="me", password="s3cret", tls={"verify": False})
    server = made.server("label", HERE)
    assert "s3cret" not in repr(made) + repr(server)
    assert made.address == "host:7000"
    arguments = connection_arguments(server, 5.0, 2.0)
    assert (arguments["host"], arguments["port"], arguments["db"]) == ("host", 7000, 3)
    assert (arguments["username"], arguments["password"]) == ("me", "s3cret")
    assert (arguments["ssl"], arguments["ssl_cert_reqs"]) == (True, "none")
    plain = connection_arguments(connection().server("label", HERE), 5.0, 2.0)
    assert (plain["port"], plain["db"], plain["ssl"]) == (6379, 0, False)


def test_errors_of_the_server() -> None:
    def code_of(error: redis.RedisError) -> str:
        with pytest.raises(ProjectError) as caught:
            check_access("label", error)
        return caught.value.code

    assert code_of(redis.AuthenticationError("invalid password")) == "service-authentication"
    assert code_of(redis.exceptions.NoPermissionError("no permissions")) == "service-authentication"
    assert code_of(redis.ConnectionError("certificate verify failed")) == "service-tls"
    check_access("label", redis.ConnectionError("refused"))
    for error in (
        redis.ConnectionError(),
        redis.TimeoutError(),
        redis.exceptions.ReadOnlyError(),
        redis.ResponseError("MISCONF"),
    ):
        assert is_transient(error)
    assert not is_transient(redis.ResponseError("WRONGTYPE"))


def test_a_server_that_is_unavailable() -> None:
    client = RedisClient(connection(url="redis://127.0.0.1:1").server("label", HERE), 1.0, 0.0)
    with pytest.raises(ProjectError) as caught:
        client.call(lambda connected: connected.ping())
    assert caught.value.code == "service-away"
