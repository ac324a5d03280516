"""Addresses and errors of MySQL."""

from __future__ import annotations

import pymysql

from headrace.systems.mysql import MySqlAddress, error_code, error_text


def test_addresses() -> None:
    address = MySqlAddress("mysql://me%40home:s3%2Fcret@db.example/shop?ssl-ca=ca.pem")
    assert (address.user, address.password, address.host_port) == ("me@home", "s3/cret", "db.example:3306")
    assert (address.database, address.parameters) == ("shop", {"ssl-ca": "ca.pem"})
    assert "cret" not in repr(address)
    assert address.arguments(0.2) == {
        "host": "db.example", "port": 3306, "user": "me@home", "password": "s3/cret", "charset": "utf8mb4",
        "connect_timeout": 1, "autocommit": True, "read_timeout": 600,
    }  # fmt: skip


def test_options_take_precedence_over_the_address() -> None:
    address = MySqlAddress("mysql://me:word@db:3307/shop", "you", "other")
    assert (address.user, address.password, address.host_port) == ("you", "other", "db:3307")


def test_errors() -> None:
    assert (error_code(pymysql.err.OperationalError(1045, "denied")), error_code(OSError())) == (1045, 0)
    assert error_text(pymysql.err.OperationalError(1045, "denied")) == "denied"
    assert error_text(pymysql.err.InterfaceError()) == "InterfaceError"
