from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError
from pydantic import ValidationError

from headrace.core.context import Context
from headrace.core.errors import ProjectError
from headrace.systems.kafka.cluster import Cluster, cluster_error, missing_topic
from headrace.systems.kafka.connection import KafkaConnection, Security, jaas
from headrace.systems.kafka.tls import certificates_of
from headrace.testing.services import Kafka

HERE = Context(root=Path("/project"), state="/project/.headrace")


def connection(**options: Any) -> KafkaConnection:
    return KafkaConnection.model_validate({"brokers": "a:9092", **options})


def refusal(**options: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        connection(**options)
    return caught.value.errors()[0]["type"]


def code_of(properties: dict[str, str], **options: Any) -> str:
    with pytest.raises(ProjectError) as caught:
        Cluster(properties, **options).topics()
    assert "secret" not in str(caught.value)
    return caught.value.code


def test_brokers_are_a_list_or_text() -> None:
    assert connection(brokers="a:1, b:2").brokers == ["a:1", "b:2"]
    assert connection(brokers=["[::1]:9092", "b:2"]).cluster == "[::1]:9092,b:2"


@pytest.mark.parametrize("brokers", ["", "localhost", "http://a:1", "a:0", "a:99999", ["a:1", "b"]])
def test_what_is_not_host_and_port_is_refused(brokers: object) -> None:
    assert refusal(brokers=brokers) in ("bad-broker", "too_short")


def test_plain_translation() -> None:
    plain = connection(options={"fetch.min.bytes": 5, "check.crcs": True})
    assert plain.java_properties(HERE) == {
        "bootstrap.servers": "a:9092",
        "fetch.min.bytes": "5",
        "check.crcs": "true",
    }
    assert plain.librdkafka_properties(HERE) == {
        "bootstrap.servers": "a:9092",
        "fetch.min.bytes": "5",
        "check.crcs": "true",
        "log_level": "0",
    }


def test_names_that_differ_are_translated_and_java_only_ones_left_out() -> None:
    options = {"buffer.memory": "1048576", "max.request.size": "7", "max.block.ms": "1", "fetch.max.wait.ms": "9"}
    translated = connection(options=options).librdkafka_properties(HERE)
    assert {name: translated.get(name) for name in ("queue.buffering.max.kbytes", "message.max.bytes")} == {
        "queue.buffering.max.kbytes": "1024",
        "message.max.bytes": "7",
    }
    assert translated["fetch.wait.max.ms"] == "9"
    assert "max.block.ms" not in translated


def test_a_login_is_translated_for_both_clients() -> None:
    login = {"sasl": "SCRAM-SHA-512", "username": "al", "password": 'p"\\w'}
    secured = connection(security=login)
    assert secured.java_properties(HERE) == {
        "bootstrap.servers": "a:9092",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="al" password="p\\"\\\\w";',
    }
    ours = secured.librdkafka_properties(HERE)
    assert (ours["sasl.username"], ours["sasl.password"]) == ("al", 'p"\\w')
    assert "p" + '"' not in repr(secured)


@pytest.mark.spark
@pytest.mark.parametrize("password", ["simple", 'a"b', "back\\slash", "two\nlines", "semi;colon = ' x", "ünï"])
def test_java_reads_the_login_line_as_it_was_meant(spark: Any, password: str) -> None:
    jvm = spark.sparkContext._jvm
    properties = jvm.java.util.HashMap()
    value = jvm.org.apache.kafka.common.config.types.Password(jaas("PLAIN", "al", password))
    properties.put("sasl.jaas.config", value)
    context = jvm.org.apache.kafka.common.security.JaasContext.loadClientContext(properties)
    assert context.configurationEntries().get(0).getOptions().get("password") == password


@pytest.mark.parametrize(
    "security",
    [
        {},
        {"sasl": "PLAIN"},
        {"username": "a", "password": "b"},
        {"ssl": {"ca": "a", "truststore": "b"}},
        {"ssl": {"certificate": "a"}},
        {"ssl": {"certificate": "a", "key": "b", "keystore": "c"}},
    ],
)
def test_half_a_security_is_refused(security: dict[str, Any]) -> None:
    assert refusal(security=security) == "kafka-security"


@pytest.mark.parametrize("name", ["bootstrap.servers", "sasl.jaas.config", "ssl.truststore.location", "kafka.acks"])
def test_options_that_have_a_key_of_their_own_are_refused(name: str) -> None:
    assert refusal(options={name: "x"}) == "kafka-option-refused"


def test_pem_files_travel_inside_the_properties(tmp_path: Path) -> None:
    for name in ("ca", "certificate", "key"):
        (tmp_path / f"{name}.pem").write_text(f"the {name}")
    files = {name: f"{name}.pem" for name in ("ca", "certificate", "key")}
    tls = connection(security={"ssl": {**files, "key_password": "pw", "verify_hostname": False}})
    here = Context(root=tmp_path, state="")
    assert tls.java_properties(here) == {
        "bootstrap.servers": "a:9092",
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "the ca",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "the certificate",
        "ssl.keystore.key": "the key",
        "ssl.key.password": "pw",
        "ssl.endpoint.identification.algorithm": "",
    }
    ours = tls.librdkafka_properties(here)
    assert (ours["ssl.ca.pem"], ours["ssl.key.pem"]) == ("the ca", "the key")
    assert ours["ssl.endpoint.identification.algorithm"] == "none"


def test_a_certificate_that_is_not_there_is_named() -> None:
    with pytest.raises(ProjectError, match=r"/project/ca\.pem") as caught:
        connection(security={"ssl": {"ca": "ca.pem"}}).java_properties(HERE)
    assert caught.value.code == "missing-file"


def test_a_jks_key_store_is_refused_with_the_command_that_converts_it(tmp_path: Path) -> None:
    (tmp_path / "me.jks").write_bytes(b"\xfe\xed\xfe\xed....")
    with pytest.raises(ProjectError) as caught:
        connection(security={"ssl": {"keystore": "me.jks"}}).java_properties(Context(root=tmp_path, state=""))
    assert caught.value.code == "kafka-tls-file"
    assert "-deststoretype PKCS12" in str(caught.value.hint)


def test_errors_of_the_client_get_codes() -> None:
    codes = {
        KafkaError._AUTHENTICATION: "kafka-authentication",
        KafkaError._SSL: "kafka-tls",
        KafkaError.TOPIC_AUTHORIZATION_FAILED: "kafka-authorization",
        KafkaError._TRANSPORT: "broker-unreachable",
        KafkaError.INVALID_REPLICATION_FACTOR: "kafka-refused",
    }
    assert {code: cluster_error(KafkaError(code), "a:1").code for code in codes} == codes


def test_a_missing_topic_names_those_like_it() -> None:
    hint = str(missing_topic("oders", ["orders", "orders-dead", "zebra"], "a:1").hint)
    assert "did you mean 'orders'?" in hint
    assert "zebra" not in hint
    assert "--create --topic oders" in hint


def test_nobody_there() -> None:
    began = time.monotonic()
    assert code_of({"bootstrap.servers": "127.0.0.1:1", "log_level": "0"}) == "broker-unreachable"
    assert time.monotonic() - began < 60


def test_a_misspelt_property_is_refused_with_its_name() -> None:
    with pytest.raises(ProjectError, match=r"no\.such\.property") as caught:
        Cluster(connection(options={"no.such.property": "1"}).librdkafka_properties(HERE))
    assert caught.value.code == "kafka-option-unknown"


def login(mechanism: str, password: str) -> Security:
    return Security.model_validate({"sasl": mechanism, "username": "alice", "password": password})


@pytest.mark.service
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_wrong_password_is_told_from_a_right_one(kafka: Kafka, mechanism: str) -> None:
    right = connection(brokers=kafka.sasl_address, security=login(mechanism, kafka.users["alice"]))
    wrong = connection(brokers=kafka.sasl_address, security=login(mechanism, "secret"))
    Cluster(right.librdkafka_properties(HERE))
    assert code_of(wrong.librdkafka_properties(HERE)) == "kafka-authentication"


@pytest.mark.service
def test_plain_text_to_a_port_that_wants_more(kafka: Kafka) -> None:
    assert code_of(connection(brokers=kafka.sasl_address).librdkafka_properties(HERE)) == "broker-unreachable"


@pytest.mark.service
def test_tls_by_pem_and_by_java_stores(kafka: Kafka, tmp_path: Path) -> None:
    stores = {kind: tmp_path / f"trust.{kind}" for kind in ("jks", "pkcs12")}
    for kind, store in stores.items():
        keytool = ["keytool", "-importcert", "-noprompt", "-alias", "broker", "-storepass", "changeit"]
        files = ["-storetype", kind, "-file", str(kafka.certificate), "-keystore", str(store)]
        subprocess.run([*keytool, *files], check=True, capture_output=True)
    trusts = [{"ca": str(kafka.certificate)}]
    trusts += [{"truststore": str(store), "truststore_password": "changeit"} for store in stores.values()]
    for trust in trusts:
        Cluster(connection(brokers=kafka.ssl_address, security={"ssl": trust}).librdkafka_properties(HERE))
    untrusted = connection(brokers=kafka.ssl_address, security={"ssl": {}})
    assert code_of(untrusted.librdkafka_properties(HERE)) == "kafka-tls"
    with pytest.raises(ProjectError, match="password") as caught:
        certificates_of(stores["jks"], "wrong-one")
    assert caught.value.code == "kafka-tls-file"


@pytest.mark.service
def test_partitions_and_creation(kafka: Kafka, topic: Callable[..., str]) -> None:
    name = topic(partitions=3)
    cluster = Cluster(connection(brokers=kafka.address).librdkafka_properties(HERE))
    assert cluster.partitions([name]) == {name: 3}
    with pytest.raises(ProjectError) as caught:
        cluster.partitions([f"{name}x"])
    assert caught.value.code == "topic-missing"
    assert name in str(caught.value.hint)
    cluster.create(f"{name}x", 2, None, {})
    cluster.create(f"{name}x", 5, None, {})
    assert cluster.partitions([f"{name}x"]) == {f"{name}x": 2}
    with pytest.raises(ProjectError) as caught:
        cluster.create(f"{name}y", 1, 7, {})
    assert caught.value.code == "kafka-refused"


@pytest.mark.service
def test_a_broker_that_does_not_answer_is_given_up_in_time(own_kafka: Kafka) -> None:
    properties = connection(brokers=own_kafka.address).librdkafka_properties(HERE)
    own_kafka.pause()
    try:
        assert code_of(properties, deadline=2.0) == "broker-unreachable"
    finally:
        own_kafka.resume()
    assert isinstance(Cluster(properties).topics(), list)


def test_client_errors_keep_their_cause() -> None:
    error = cluster_error(KafkaError(KafkaError._TIMED_OUT, "slow"), "a:1", "orders")
    assert "slow" in error.message
    assert "orders" in error.message
