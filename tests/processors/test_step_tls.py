"""Steps over TLS: trusted with the right authority, refused without; a client certificate is shown when asked for."""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
from collections.abc import Iterator
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest
import redis
from tests.errors import code_of
from tests.processors.conftest import StepDesk
from tests.processors.test_grpc import Customers
from tests.processors.test_grpc import step as grpc_step

from headrace.processors.http import Http
from headrace.processors.redis import RedisEnricher as RedisStep
from headrace.testing.services import Redis
from headrace.testing.services.ports import choose

pytestmark = pytest.mark.service

FILES = {"certificate": "ca.pem", "key": "key.pem"}


@pytest.fixture
def here(desk: StepDesk, tmp_path_factory: pytest.TempPathFactory) -> StepDesk:
    """A project with ca.pem and key.pem: a certificate that vouches for itself."""
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=mill"]
    request += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(desk.root / "key.pem")]
    subprocess.run([*request, "-out", str(desk.root / "ca.pem")], check=True, capture_output=True)
    return desk


@pytest.fixture
def https(here: StepDesk) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = json.dumps({"path": self.path}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(b"" if self.command == "HEAD" else body)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *words: Any) -> None:
            """Tests are quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(here.root / "ca.pem", here.root / "key.pem")
    context.load_verify_locations(here.root / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_https(https: str, here: StepDesk) -> None:
    def step(**tls: Any) -> Http:
        given = {"url": f"{https}/a/{{id}}", "columns": {"path": "$.path"}, "retries": 0, "give_up": "100ms"}
        return Http.model_validate({**given, "tls": tls})

    for tls in ({"ca": "ca.pem", **FILES}, {"verify": False, **FILES}):
        step(**tls).check(here.context)
        assert here.run(step(**tls), {"id": [1]}) == [{"id": 1, "path": "/a/1"}]
    assert code_of(lambda: step(**FILES).check(here.context)) == "service-tls"
    assert code_of(lambda: here.run(step(**FILES), {"id": [1]})) == "service-tls"
    assert code_of(lambda: here.run(step(ca="ca.pem"), {"id": [1]})) in ("service-tls", "service-away")
    assert code_of(lambda: step(ca="nowhere.pem").check(here.context)) == "missing-file"


def test_redis(here: StepDesk) -> None:
    with Redis() as server, redis.Redis(port=server.port) as plain:
        port = choose(["tls"], {})["tls"]
        files = {"tls-cert-file": "ca.pem", "tls-key-file": "key.pem", "tls-ca-cert-file": "ca.pem"}
        words = [word for name, file in files.items() for word in (name, str(here.root / file))]
        plain.config_set("tls-auth-clients", "no", *words, "tls-port", port)
        plain.set("a", '{"n": 1}')

        def step(**tls: Any) -> RedisStep:
            given = {"url": f"rediss://127.0.0.1:{port}/0", "key": "{id}", "columns": {"n": "$.n"}, "tls": tls}
            return RedisStep.model_validate(given)

        assert here.run(step(ca="ca.pem"), {"id": ["a"]}) == [{"id": "a", "n": "1"}]
        step(verify=False).check(here.context)
        assert code_of(lambda: step().check(here.context)) == "service-tls"


class SecureCustomers(Customers):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def start(self) -> None:
        handler = grpc.unary_unary_rpc_method_handler(
            self.get,
            request_deserializer=self.question.FromString,
            response_serializer=lambda answer: answer.SerializeToString(),
        )
        key, certificate = ((self.folder / name).read_bytes() for name in ("key.pem", "ca.pem"))
        credentials = grpc.ssl_server_credentials([(key, certificate)], certificate, require_client_auth=True)
        self.server = grpc.server(futures.ThreadPoolExecutor(2))
        self.server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("shop.Customers", {"Get": handler})])
        assert self.server.add_secure_port(f"127.0.0.1:{self.port}", credentials) == self.port
        self.server.start()


def test_grpc(here: StepDesk) -> None:
    customers = SecureCustomers(here.root)
    customers.start()
    try:
        known = grpc_step(customers, here.root, tls={"ca": "ca.pem", **FILES})
        known.check(here.context)
        assert here.run(known, {"id": ["a"], "n": [1]})[0]["name"] == "name of a"
        unknown = grpc_step(customers, here.root, tls=FILES, retries=0, give_up="100ms")
        assert code_of(lambda: here.run(unknown, {"id": ["a"], "n": [1]})) in ("service-tls", "service-away")
    finally:
        customers.server.stop(0)
