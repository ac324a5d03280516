"""What a Kafka broker for one machine is configured with. Pure, but for the certificate and the writing of files."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Mapping
from pathlib import Path

from headrace.testing.services.ports import HOST

SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")

LOGGING = """appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %-5p %c{1.} %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""

_PROTOCOLS = {"client": "PLAINTEXT", "controller": "PLAINTEXT", "sasl": "SASL_PLAINTEXT", "ssl": "SSL"}
_LOGIN = "org.apache.kafka.common.security"
_KEYSTORE, _KEYSTORE_PASSWORD = "keystore.p12", "keystore.password"


def broker(ports: Mapping[str, int], data: Path, home: Path, users: Mapping[str, str]) -> str:
    """The text of server.properties."""
    settings = _basics(ports, data)
    if "sasl" in ports:
        settings |= _sasl(users)
    if "ssl" in ports:
        settings |= _ssl(home)
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read: it may hold passwords."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)


def make_certificate(java: str, home: Path, certificate: Path) -> None:
    """A self-signed certificate for loopback: a key store for the broker, PEM for its clients."""
    password, keystore = home / _KEYSTORE_PASSWORD, home / _KEYSTORE
    write_private(password, secrets.token_hex(16))
    keystore.unlink(missing_ok=True)
    keytool = [str(Path(java).with_name("keytool")), "-keystore", str(keystore), "-storepass:file", str(password)]
    names = ["-dname", "CN=localhost", "-ext", f"san=ip:{HOST},dns:localhost", "-ext", "bc:c"]
    key = ["-genkeypair", "-alias", "broker", "-storetype", "PKCS12", "-keyalg", "EC", "-validity", "3650", *names]
    subprocess.run([*keytool, *key], check=True, capture_output=True)
    export = [*keytool, "-exportcert", "-alias", "broker", "-rfc", "-file", str(certificate)]
    subprocess.run(export, check=True, capture_output=True)


def _basics(ports: Mapping[str, int], data: Path) -> dict[str, str]:
    listeners = {name.upper(): port for name, port in ports.items()}
    addresses = {name: f"{name}://{HOST}:{port}" for name, port in listeners.items()}
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.bootstrap.servers": f"{HOST}:{ports['controller']}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "CLIENT",
        "listeners": ",".join(addresses.values()),
        "advertised.listeners": ",".join(addresses.values()),
        "listener.security.protocol.map": ",".join(f"{name.upper()}:{_PROTOCOLS[name]}" for name in ports),
        "log.dirs": str(data),
        "auto.create.topics.enable": "false",
        "num.partitions": "1",
        "default.replication.factor": "1",
        # One node, and few internal partitions: it starts and elects coordinators in a moment.
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "4",
        "group.initial.rebalance.delay.ms": "0",
        # After a crash the broker may join again only when its former session has ended: not after the usual 9 s.
        "broker.session.timeout.ms": "4000",
        "broker.heartbeat.interval.ms": "1000",
        "log.cleaner.dedupe.buffer.size": "16777216",
    }


def _sasl(users: Mapping[str, str]) -> dict[str, str]:
    accounts = " ".join(f'user_{name}="{password}"' for name, password in users.items())
    settings = {
        "listener.name.sasl.sasl.enabled.mechanisms": ",".join(("PLAIN", *SCRAM)),
        "listener.name.sasl.plain.sasl.jaas.config": f"{_LOGIN}.plain.PlainLoginModule required {accounts};",
    }
    for mechanism in SCRAM:
        prefix = f"listener.name.sasl.{mechanism.lower()}"
        settings[f"{prefix}.sasl.jaas.config"] = f"{_LOGIN}.scram.ScramLoginModule required;"
    return settings


def _ssl(home: Path) -> dict[str, str]:
    return {
        "listener.name.ssl.ssl.keystore.type": "PKCS12",
        "listener.name.ssl.ssl.keystore.location": str(home / _KEYSTORE),
        "listener.name.ssl.ssl.keystore.password": (home / _KEYSTORE_PASSWORD).read_text(),
    }
