"""Migrates the Kafka client properties of Dagger to options of the kafka source and sink."""

from __future__ import annotations

import re
from typing import Any

from headrace.migrate.draft import Draft, escape_variables

_JAAS = re.compile(r"(\w+)\s*=\s*\"((?:[^\"\\]|\\.)*)\"")
_SECRET = re.compile(r"password|secret|token|credential|jaas", re.IGNORECASE)
_FIXED = {
    "auto.commit.enable": "positions are kept in the flow's checkpoint",
    "enable.auto.commit": "positions are kept in the flow's checkpoint",
    "auto.commit.interval.ms": "positions are kept in the flow's checkpoint",
    "key.deserializer": "keys are bytes",
    "value.deserializer": "the stream's format decodes values",
    "isolation.level": "it is always read_committed",
    "acks": "it is always all",
    "enable.idempotence": "it is always on",
    "ssl.keystore.type": "it is detected from the file",
    "ssl.truststore.type": "it is detected from the file",
    "ssl.protocol": "the client chooses it",
}


def properties(draft: Draft, prefix: str) -> dict[str, str]:
    """The client properties in all settings with a prefix."""
    return {_client_name(key): value for key, value in draft.prefixed(prefix).items() if value != ""}


def additional(draft: Draft, key: str, prefix: str) -> dict[str, str]:
    """The client properties in a setting that is a JSON object."""
    document = draft.json(key, {})
    return {_client_name(name.removeprefix(prefix)): str(value) for name, value in document.items()}


def _client_name(key: str) -> str:
    return re.sub(r"_+", ".", key.lower())


def options(draft: Draft, client: dict[str, str], prefix: str, owner: str) -> dict[str, Any]:
    """The options `security` and `options` of a kafka source or sink. `owner` is part of the names of its secrets."""
    kafka: dict[str, Any] = {}
    security = _security(draft, client, prefix, owner)
    if security:
        kafka["security"] = security
    rest = {}
    for name, value in client.items():
        key = prefix + name.upper().replace(".", "_")
        if name in _FIXED:
            draft.note("not_needed", key, _FIXED[name])
        else:
            rest[name] = draft.secret(f"{owner}_{name}", key) if _SECRET.search(name) else escape_variables(value)
    if rest:
        kafka["options"] = rest
    return kafka


def _security(draft: Draft, client: dict[str, str], prefix: str, owner: str) -> dict[str, Any]:
    protocol = client.pop("security.protocol", "PLAINTEXT").upper()
    mechanism = client.pop("sasl.mechanism", "PLAIN")
    jaas = dict(_JAAS.findall(client.pop("sasl.jaas.config", "")))
    tls = _tls(draft, client, prefix, owner) if protocol.endswith("SSL") else _without_tls(draft, client, prefix)
    security: dict[str, Any] = {}
    if protocol.startswith("SASL"):
        security = {
            "sasl": mechanism,
            "username": escape_variables(jaas.get("username", "")) or draft.secret(f"{owner}_kafka_username", prefix),
            "password": draft.secret(f"{owner}_kafka_password", f"{prefix}SASL_JAAS_CONFIG"),
        }
    if protocol.endswith("SSL"):
        security["ssl"] = tls
    return security


def _without_tls(draft: Draft, client: dict[str, str], prefix: str) -> dict[str, Any]:
    for name in [name for name in client if name.startswith("ssl.")]:
        del client[name]
        draft.note("not_needed", prefix + name.upper().replace(".", "_"), "the connection is not encrypted")
    return {}


def _tls(draft: Draft, client: dict[str, str], prefix: str, owner: str) -> dict[str, Any]:
    tls: dict[str, Any] = {}
    for name in ("truststore", "keystore"):
        location = client.pop(f"ssl.{name}.location", None)
        password = client.pop(f"ssl.{name}.password", None)
        if location is not None:
            tls[name] = escape_variables(location)
            draft.note(
                "check",
                f"{prefix}SSL_{name.upper()}_LOCATION",
                f"the file {location} must exist on the machines that run the flows",
            )
        if password is not None:
            tls[f"{name}_password"] = draft.secret(f"{owner}_{name}_password", f"{prefix}SSL_{name.upper()}_PASSWORD")
    if client.pop("ssl.key.password", None) is not None:
        tls["key_password"] = draft.secret(f"{owner}_key_password", f"{prefix}SSL_KEY_PASSWORD")
    if client.pop("ssl.endpoint.identification.algorithm", "https") == "":
        tls["verify_hostname"] = False
    return tls
