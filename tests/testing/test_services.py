"""Real servers start, answer a real client, survive what is done to them, and leave nothing behind."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import psutil
import pytest

from headrace.core.errors import ProjectError
from headrace.core.files.objects import ObjectPath
from headrace.testing.services import (
    KINDS,
    S3,
    Etcd,
    InfluxDB,
    Kafka,
    Postgres,
    Redis,
    Service,
    installing,
    kafka_config,
    named,
)
from headrace.testing.services.daemon import Daemon, await_true
from headrace.testing.services.ports import HOST, is_free
from headrace.testing.services.probe import ask, http_get


@dataclass(frozen=True)
class Web(Service):
    """The smallest server there is, to try what all services share."""

    kind: ClassVar[str] = "web"
    binary: ClassVar[str] = "sh"
    start_seconds: ClassVar[float] = 60

    script: str = "exec {python} -m http.server --bind 127.0.0.1 {port}"

    def prepare(self, chosen: Mapping[str, int]) -> list[str]:
        return ["sh", "-c", self.script.format(python=sys.executable, port=chosen["client"])]

    def answers(self) -> bool:
        return http_get(self.port, "/") is not None

    @property
    def env(self) -> dict[str, str]:
        return {"WEB_URL": f"http://{self.address}"}


def test_a_service_starts_goes_on_after_a_restart_and_leaves_nothing() -> None:
    with Web() as web:
        address = web.address
        assert web.start().address == address  # starting what runs does nothing
        web.kill()
        assert not web.is_running()
        assert web.start().address == address
    assert not web.is_running()
    assert is_free(web_port(address))
    assert not web.home.exists()


def web_port(address: str) -> int:
    return int(address.rpartition(":")[2])


def test_a_chosen_folder_stays_and_another_object_finds_the_process(tmp_path: Path) -> None:
    with Web(tmp_path / "web"):
        other = Web(tmp_path / "web")
        assert other.is_running()
        other.stop()
        other.stop()
        assert not other.is_running()
    assert (tmp_path / "web" / "state.json").exists()


def test_a_paused_service_is_stopped_all_the_same(tmp_path: Path) -> None:
    with Web(tmp_path) as web:
        web.pause()
        assert ask(web.port, b"GET / HTTP/1.0\r\n\r\n") is None
        web.resume()
        assert await_true(web.answers, 60)
        web.pause()
    assert not web.is_running()


def test_one_that_does_not_heed_is_ended_by_force_with_its_children(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "state.json", tmp_path / "log")
    daemon.spawn(["sh", "-c", "trap '' TERM; sleep 600 & while :; do wait; done"], {"client": 1}, os.environ)
    process = daemon.process()
    assert process is not None
    wait_for_child(process)
    family = process.children()
    daemon.stop(grace=0.1)
    assert daemon.process() is None
    assert psutil.wait_procs(family, timeout=60)[1] == []


def wait_for_child(process: psutil.Process) -> None:
    while not process.children():
        assert process.is_running()


def test_a_stale_pid_is_not_believed(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "state.json", tmp_path / "log")
    daemon.spawn(["true"], {"client": 1}, os.environ)
    state = json.loads(daemon.state_file.read_text())
    before = psutil.Process().create_time() - 60
    daemon.state_file.write_text(json.dumps({**state, "pid": os.getpid(), "process_started": before}))  # it is ours now
    assert daemon.process() is None
    daemon.stop()
    daemon.kill()


def test_a_failed_start_shows_the_last_words() -> None:
    web = Web(script="echo the data directory is from Mars; exit 3")
    with pytest.raises(ProjectError) as caught:
        web.start()
    assert caught.value.code == "service-failed"
    assert "the process ended" in caught.value.message
    assert "from Mars" in caught.value.message
    web.remove()


def test_a_server_that_never_answers_is_given_up() -> None:
    class Silent(Web):
        start_seconds = 0.2

    silent = Silent(script="exec sleep 600")
    with pytest.raises(ProjectError, match="no answer within"):
        silent.start()
    assert not silent.is_running()
    silent.remove()


def test_a_port_taken_meanwhile_is_exchanged_for_another() -> None:
    squatters: list[socket.socket] = []

    class Unlucky(Web):
        def prepare(self, chosen: Mapping[str, int]) -> list[str]:
            if not squatters:
                squatters.append(socket.create_server((HOST, chosen["client"])))
            return super().prepare(chosen)

    with Unlucky() as web, squatters[0] as squatter:
        assert web.answers()
        assert web.port != squatter.getsockname()[1]


def test_a_missing_server_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ProjectError) as caught:
        Redis().start()
    assert caught.value.code == "service-unavailable"
    assert "apt-get install --no-install-recommends redis-server" in str(caught.value.hint)


def test_an_unknown_kind_gets_the_nearest_name() -> None:
    with pytest.raises(ProjectError, match="did you mean 'kafka'") as caught:
        named(["kafak"])
    assert caught.value.code == "unknown-service"


def test_kafka_passwords_are_neither_shown_nor_misquoted() -> None:
    assert "secret" not in repr(Kafka(users={"alice": "secret"}))
    with pytest.raises(ValueError, match="letters, digits"):
        Kafka(users={"alice": 'se"cret'})


def test_kafka_listens_on_loopback_only(tmp_path: Path) -> None:
    text = kafka_config.broker({"client": 1, "controller": 2, "sasl": 3}, tmp_path, tmp_path, {"a": "b"})
    listeners = next(line for line in text.splitlines() if line.startswith("listeners="))
    assert listeners == "listeners=CLIENT://127.0.0.1:1,CONTROLLER://127.0.0.1:2,SASL://127.0.0.1:3"


def test_importing_the_services_needs_neither_pyspark_nor_pytest_nor_a_client() -> None:
    unwanted = {"pyspark", "pytest", "confluent_kafka"}
    code = f"import sys, headrace.testing.services; assert not {unwanted!r} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.service
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "spark"])
def test_every_service_starts_restarts_and_frees_its_ports(kind: str, tmp_path: Path) -> None:
    service = KINDS[kind](tmp_path / kind)
    try:
        service.start()
        address, ports = service.address, service.ports
        assert set(listening(service)) >= {*ports.values()}
        assert all(address in value or not value.startswith("http") for value in service.env.values())
        check_kept = over_a_crash(service) if isinstance(service, Kafka) else None
        service.kill()
        assert service.start().address == address
        assert await_true(service.answers, 60)
        if check_kept is not None:
            check_kept()
    finally:
        service.stop()
    service.stop()
    assert not service.is_running()
    assert all(is_free(port) for port in ports.values())
    service.remove()
    assert not service.data.exists()


def listening(service: Service) -> Iterator[int]:
    """Ports of the server, all of which must be on loopback."""
    for connection in psutil.net_connections("inet"):
        state = service.server.state()
        if state and connection.pid == state.pid and connection.status == psutil.CONN_LISTEN:
            assert connection.laddr.ip in {HOST, f"::ffff:{HOST}"}
            yield connection.laddr.port


@pytest.mark.service
def test_redis_keeps_what_was_written() -> None:
    with Redis() as redis:
        assert ask(redis.port, b"SET mill wheel\r\n") == b"+OK\r\n"
        redis.stop()
        redis.start()
        assert ask(redis.port, b"GET mill\r\n") == b"$5\r\nwheel\r\n"


@pytest.mark.service
def test_influxdb_answers_queries() -> None:
    with InfluxDB() as influx:
        assert request(influx.port, "POST", "/query?q=CREATE+DATABASE+mill")[0] == 200
        assert request(influx.port, "POST", "/write?db=mill&precision=s", "wheel turns=3i 10")[0] == 204
        status, answer = request(influx.port, "GET", "/query?db=mill&epoch=s&q=SELECT+turns+FROM+wheel")
        assert status == 200
        assert json.loads(answer)["results"][0]["series"][0]["values"] == [[10, 3]]


@pytest.mark.service
def test_etcd_keeps_keys() -> None:
    with Etcd() as etcd:
        assert request(etcd.port, "GET", "/health") == (200, b'{"health":"true"}')
        assert request(etcd.port, "POST", "/v3/kv/put", '{"key":"bWlsbA==","value":"d2hlZWw="}')[0] == 200
        etcd.kill()
        etcd.start()
        _, answer = request(etcd.port, "POST", "/v3/kv/range", '{"key":"bWlsbA=="}')
        assert json.loads(answer)["kvs"][0]["value"] == "d2hlZWw="


def request(port: int, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(HOST, port, timeout=60)
    connection.request(method, path, body)
    response = connection.getresponse()
    return response.status, response.read()


@pytest.mark.service
def test_postgres_runs_sql_with_logical_replication_and_stops_with_clients_connected() -> None:
    with Postgres() as postgres:
        psql = [postgres.program("psql"), "--no-psqlrc", "--tuples-only", "--no-align", "--command"]
        asked = [*psql, "CREATE TABLE mill (id int); INSERT INTO mill VALUES (7); SHOW wal_level"]
        environment = {**os.environ, **postgres.env}
        assert subprocess.check_output(asked, env=environment, text=True).split()[-1] == "logical"
        with subprocess.Popen([*psql, "SELECT pg_sleep(600)"], env=environment, stderr=subprocess.DEVNULL) as client:
            postgres.stop()
            assert client.wait(30) != 0
        postgres.start()
        answer = subprocess.check_output([*psql, "SELECT id FROM mill"], env={**os.environ, **postgres.env}, text=True)
        assert answer == "7\n"


@pytest.mark.service
def test_kafka_transactions_are_seen_by_committed_readers_only_when_committed(kafka: Kafka) -> None:
    from confluent_kafka import Producer

    kafka.create_topic("transactions", partitions=3)
    producer = Producer({"bootstrap.servers": kafka.address, "transactional.id": "test"})
    producer.init_transactions(60)
    for value, commit in ((b"aborted", False), (b"committed", True)):
        producer.begin_transaction()
        producer.produce("transactions", value, partition=0)
        producer.flush(30)
        producer.commit_transaction(30) if commit else producer.abort_transaction(30)
    assert consume(kafka, "transactions", 1) == [b"committed"]
    assert len(kafka.admin().list_topics("transactions").topics["transactions"].partitions) == 3


@pytest.mark.service
def test_kafka_makes_no_topic_by_itself(kafka: Kafka) -> None:
    assert kafka.admin().list_topics("nowhere", timeout=10).topics["nowhere"].error is not None
    assert "nowhere" not in kafka.admin().list_topics(timeout=10).topics


@pytest.mark.service
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_kafka_knows_its_users(kafka: Kafka, mechanism: str) -> None:
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, "sasl.username": "alice"}
    assert outcome(kafka.sasl_address, **login, **{"sasl.password": kafka.users["alice"]}) == "connected"
    assert outcome(kafka.sasl_address, **login, **{"sasl.password": "another-one"}) == "_AUTHENTICATION"


@pytest.mark.service
def test_kafka_over_tls_wants_its_certificate_to_be_trusted(kafka: Kafka) -> None:
    secure = {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "https"}
    assert outcome(kafka.ssl_address, **secure, **{"ssl.ca.location": str(kafka.certificate)}) == "connected"
    assert outcome(kafka.ssl_address, **secure) == "_SSL"


@pytest.mark.service
def test_kafka_files_with_secrets_are_private(kafka: Kafka) -> None:
    for name in ("server.properties", "keystore.password"):
        assert (kafka.home / name).stat().st_mode & 0o077 == 0
    assert kafka.users["alice"] not in kafka.log_file.read_text()


def over_a_crash(broker: Kafka) -> Callable[[], None]:
    """Write a record; gives what shows after a crash that the broker has kept it, and that it answers after a pause."""
    from confluent_kafka import Producer

    broker.create_topic("kept")
    producer = Producer({"bootstrap.servers": broker.address})
    producer.produce("kept", b"before the crash")
    assert producer.flush(30) == 0

    def check() -> None:
        broker.pause()
        producer.produce("kept", b"while paused")
        assert producer.flush(1) == 1
        broker.resume()
        assert producer.flush(60) == 0
        assert consume(broker, "kept", 2) == [b"before the crash", b"while paused"]

    return check


def consume(broker: Kafka, topic: str, count: int) -> list[bytes]:
    """The first records a committed reader sees; one more poll shows that there are no others."""
    from confluent_kafka import Consumer

    options = {"group.id": topic, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    consumer = Consumer({"bootstrap.servers": broker.address, **options})
    consumer.subscribe([topic])
    try:
        messages = consumer.consume(count, timeout=60) + consumer.consume(1, timeout=1)
    finally:
        consumer.close()
    return [message.value() for message in messages]


def outcome(address: str, **options: str) -> str:
    """ "connected", or the name of the first error a client is told that says why. That a connection broke, which may
    be told before, does not."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    errors: list[str] = []
    client = AdminClient(
        {"bootstrap.servers": address, "log_level": 0, "error_cb": lambda error: errors.append(error.name()), **options}
    )
    until = time.monotonic() + 60
    while not (telling := [name for name in errors if name not in ("_TRANSPORT", "_ALL_BROKERS_DOWN")]):
        assert time.monotonic() < until, errors
        try:
            if client.list_topics(timeout=1).brokers:
                return "connected"
        except KafkaException:
            client.poll(0)
    return telling[0]


def command(*words: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """`headrace services` as a process of its own."""
    program = [sys.executable, "-c", "from headrace.cli.environment.services import app; app()", *words]
    return subprocess.run(program, cwd=folder, env={**os.environ, **env}, capture_output=True, text=True, check=False)


def test_status_of_a_folder_without_services_is_an_empty_list(tmp_path: Path) -> None:
    assert json.loads(command("status", "--json", folder=tmp_path).stdout) == []
    assert json.loads(command("down", "--json", folder=tmp_path).stdout) == []


@pytest.mark.parametrize(("ci", "code"), [("", 0), ("true", 1)])
def test_install_lists_what_cannot_be_had_and_fails_only_in_ci(ci: str, code: int, tmp_path: Path) -> None:
    done = command("install", "redis", "--json", folder=tmp_path, PATH="", CI=ci)
    assert json.loads(done.stdout) == [{"kind": "redis", "state": "unavailable"}]
    assert "error[service-unavailable]: redis" in done.stderr
    assert done.returncode == code


def test_debian_does_not_start_what_is_installed_and_no_policy_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tmp_path / "policy-rc.d"
    monkeypatch.setattr(installing, "_POLICY", policy)
    with installing._daemons_not_started():
        assert subprocess.run([policy], check=False).returncode == 101
    assert not policy.exists()
    policy.write_text("the machine's own")
    with installing._daemons_not_started():
        pass
    assert policy.read_text() == "the machine's own"


@pytest.mark.service
def test_up_status_down(tmp_path: Path) -> None:
    try:
        started = json.loads(command("up", "redis", "etcd", "--json", folder=tmp_path).stdout)
        assert [row["kind"] for row in started] == ["redis", "etcd"]
        assert ask(started[0]["port"], b"PING\r\n") == b"+PONG\r\n"
        state = json.loads((tmp_path / ".headrace" / "services" / "redis" / "state.json").read_text())
        assert (state["pid"], state["port"]) == (started[0]["pid"], started[0]["port"])

        assert json.loads(command("up", "redis", "--json", folder=tmp_path).stdout) == started[:1]
        Etcd(tmp_path / ".headrace" / "services" / "etcd").kill()
        shown = json.loads(command("status", "--json", folder=tmp_path).stdout)
        assert {row["kind"]: row["state"] for row in shown} == {"redis": "running", "etcd": "stopped"}
        assert "REDIS_URL=redis://127.0.0.1" in command("status", folder=tmp_path).stdout
    finally:
        ended = command("down", folder=tmp_path)
    assert ended.returncode == 0
    assert "stopping redis" in ended.stderr
    assert is_free(started[0]["port"])


@pytest.mark.service
def test_an_object_store_keeps_objects_over_a_restart_and_heeds_conditions(s3: S3) -> None:
    s3.make_bucket("kept")
    thing = ObjectPath.of("s3://kept/a/thing", s3.store)
    tag = thing.put(b"one", new=True)
    s3.kill()
    s3.start()
    assert thing.read_bytes() == b"one"
    for conditions in ({"new": True}, {"instead_of": '"0"'}):
        with pytest.raises(FileExistsError):
            thing.put(b"two", **conditions)  # type: ignore[arg-type]
    thing.put(b"two", instead_of=tag)
    assert [str(one) for one in ObjectPath.of("s3://kept", s3.store).rglob("*")] == ["s3://kept/a/thing"]
