"""Properties of Kafka clients, named as Dagger names them, as options of our kafka kinds."""

from __future__ import annotations

import re
from typing import Any

from headrace.migrate.draft import Draft, escape_variables

_JAAS = re.compile(r"(\w+)\s*=\s*\"((?:[^\"\\]|\\.)*)\"")
_SECRET = re.compile(r"password|secret|token|credential|jaas", re.IGNORECASE)
_OURS = {
    "auto.commit.enable": "positions are kept in the flow's checkpoint",
    "enable.auto.commit": "positions are kept in the flow's checkpoint",
    "auto.commit.interval.ms": "positions are kept in the flow's checkpoint",
    "key.deserializer": "keys are bytes",
    "value.deserializer": "the stream's format decodes values",
    "isolation.level": "it is always read_committed",
    "acks": "it is always all",
    "enable.idempotence": "it is always on",
    "ssl.keystore.type": "it is told from the file",
    "ssl.truststore.type": "it is told from the file",
    "ssl.protocol": "the client chooses it",
}


def properties(draft: Draft, prefix: str) -> dict[str, str]:
    """The client's own names of all settings with a prefix."""
    return {_client_name(key): value for key, value in draft.prefixed(prefix).items() if value != ""}


def additional(draft: Draft, key: str, prefix: str) -> dict[str, str]:
    """Those that stand in a JSON object."""
    given = draft.json(key, {})
    return {_client_name(name.removeprefix(prefix)): str(value) for name, value in given.items()}


def _client_name(key: str) -> str:
    return re.sub(r"_+", ".", key.lower())


def options(draft: Draft, given: dict[str, str], prefix: str, owner: str) -> dict[str, Any]:
    """`security` and `options` of a kafka source or sink; `owner` names its secrets."""
    made: dict[str, Any] = {}
    security = _security(draft, given, prefix, owner)
    if security:
        made["security"] = security
    rest = {}
    for name, value in given.items():
        key = prefix + name.upper().replace(".", "_")
        if name in _OURS:
            draft.note("not_needed", key, _OURS[name])
        else:
            rest[name] = draft.secret(f"{owner}_{name}", key) if _SECRET.search(name) else escape_variables(value)
    if rest:
        made["options"] = rest
    return made


def _security(draft: Draft, given: dict[str, str], prefix: str, owner: str) -> dict[str, Any]:
    protocol = given.pop("security.protocol", "PLAINTEXT").upper()
    mechanism = given.pop("sasl.mechanism", "PLAIN")
    jaas = dict(_JAAS.findall(given.pop("sasl.jaas.config", "")))
    tls = _tls(draft, given, prefix, owner) if protocol.endswith("SSL") else _without_tls(draft, given, prefix)
    made: dict[str, Any] = {}
    if protocol.startswith("SASL"):
        made = {
            "sasl": mechanism,
            "username": escape_variables(jaas.get("username", "")) or draft.secret(f"{owner}_kafka_username", prefix),
            "password": draft.secret(f"{owner}_kafka_password", f"{prefix}SASL_JAAS_CONFIG"),
        }
    if protocol.endswith("SSL"):
        made["ssl"] = tls
    return made


def _without_tls(draft: Draft, given: dict[str, str], prefix: str) -> dict[str, Any]:
    for name in [name for name in given if name.startswith("ssl.")]:
        del given[name]
        draft.note("not_needed", prefix + name.upper().replace(".", "_"), "the connection is not encrypted")
    return {}


def _tls(draft: Draft, given: dict[str, str], prefix: str, owner: str) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name in ("truststore", "keystore"):
        location = given.pop(f"ssl.{name}.location", None)
        password = given.pop(f"ssl.{name}.password", None)
        if location is not None:
            made[name] = escape_variables(location)
            draft.note("check", f"{prefix}SSL_{name.upper()}_LOCATION", f"the file {location} must be where flows run")
        if password is not None:
            made[f"{name}_password"] = draft.secret(f"{owner}_{name}_password", f"{prefix}SSL_{name.upper()}_PASSWORD")
    if given.pop("ssl.key.password", None) is not None:
        made["key_password"] = draft.secret(f"{owner}_key_password", f"{prefix}SSL_KEY_PASSWORD")
    if given.pop("ssl.endpoint.identification.algorithm", "https") == "":
        made["verify_hostname"] = False
    return made
