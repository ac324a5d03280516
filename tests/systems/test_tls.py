"""Encrypted connections to real servers: trusted with the right authority, refused without, never in plain text."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from pydantic import ValidationError
from tests.conftest import unavailable
from tests.errors import code_of

from headrace.core.context import Context
from headrace.sinks.opensearch import OpenSearchSink
from headrace.sinks.postgres import PostgresSink
from headrace.sinks.redis import RedisSink
from headrace.systems.tls import ServiceTls
from headrace.testing.services import Postgres, Redis
from headrace.testing.services.daemon import await_true
from headrace.testing.services.ports import choose


def test_certificate_and_key_belong_together(tmp_path: Path) -> None:
    with pytest.raises(ValidationError):
        ServiceTls(certificate="me.pem")
    assert code_of(lambda: ServiceTls(ca="nowhere.pem").texts(Context(tmp_path, "state"))) == "missing-file"


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Context:
    """A project with ca.pem and key.pem: a server's certificate that vouches for itself."""
    folder = tmp_path_factory.mktemp("tls")
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=mill"]
    request += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(folder / "key.pem")]
    subprocess.run([*request, "-out", str(folder / "ca.pem")], check=True, capture_output=True)
    return Context(folder, "state")


@pytest.fixture
def https(here: Context) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *words: Any) -> None:
            """Tests are quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(here.root / "ca.pem", here.root / "key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.service
@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
def test_https(https: str, here: Context) -> None:
    def sink(**tls: Any) -> OpenSearchSink:
        return OpenSearchSink.model_validate({"url": https, "index": "i", "retry_for": "1s", "tls": tls})

    sink(ca="ca.pem").check(here)
    sink(verify=False).check(here)
    assert code_of(lambda: sink().check(here)) == "service-tls"


@pytest.mark.service
def test_redis(here: Context) -> None:
    problem = Redis.problem()
    if problem is not None:
        unavailable(problem)
    with Redis() as server, redis.Redis(port=server.port) as plain:
        port = choose(["tls"], {})["tls"]
        files = {"tls-cert-file": "ca.pem", "tls-key-file": "key.pem", "tls-ca-cert-file": "ca.pem"}
        settings = {name: str(here.root / file) for name, file in files.items()}
        plain.config_set(
            "tls-auth-clients", "no", *(word for pair in settings.items() for word in pair), "tls-port", port
        )

        def sink(**tls: Any) -> RedisSink:
            given = {"url": f"rediss://127.0.0.1:{port}/0", "key": "{id}", "retry_for": "1s", "tls": tls}
            return RedisSink.model_validate(given)

        sink(ca="ca.pem").check(here)
        sink(verify=False).check(here)
        assert code_of(lambda: sink().check(here)) == "service-tls"


@pytest.mark.service
def test_postgres(here: Context) -> None:
    problem = Postgres.problem()
    if problem is not None:
        unavailable(problem)
    with Postgres() as server, psycopg.connect(server.env["POSTGRES_URL"], autocommit=True) as plain:
        owner = server.data.stat()
        for name, copy in (("ca.pem", "server.crt"), ("key.pem", "server.key")):
            shutil.copy(here.root / name, server.data / copy)
            shutil.chown(server.data / copy, owner.st_uid, owner.st_gid)
            (server.data / copy).chmod(0o600)
        plain.execute("CREATE TABLE t (id int)")
        plain.execute("ALTER SYSTEM SET ssl = on")
        plain.execute("SELECT pg_reload_conf()")

        def sink(**tls: Any) -> PostgresSink:
            given = {"url": server.env["POSTGRES_URL"], "table": "t", "retry_for": "1s", "tls": tls}
            return PostgresSink.model_validate(given)

        def encrypted() -> bool:
            with sink(verify=False).server(here).connect() as connection:
                return bool(connection.pgconn.ssl_in_use)

        assert await_true(lambda: plain.execute("SHOW ssl").fetchone() == ("on",), 10)
        assert encrypted()
        sink(ca="ca.pem").check(here)
        assert code_of(lambda: sink().check(here)) == "service-tls"
