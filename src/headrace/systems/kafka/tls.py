"""Certificates and keys for Kafka, as PEM files or as Java stores, translated for both of its clients.

Certificates travel inside the properties, so that executors need no copy of the files; only a PKCS12 key store is
opened by its path and must be at the same place on every machine.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Self

from pydantic import Field, SecretStr, model_validator
from pydantic_core import PydanticCustomError

from headrace.core.component import Options
from headrace.core.context import Context
from headrace.core.errors import ProjectError

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_JKS_MAGIC = b"\xfe\xed\xfe\xed"


class Tls(Options):
    """TLS towards the brokers: whom to trust and, if the brokers ask, who we are."""

    ca: str | None = Field(
        None, description="PEM file of the certificate authorities to trust.", examples=["tls/ca.pem"]
    )
    certificate: str | None = Field(None, description="PEM file of our certificate (and its chain).")
    key: str | None = Field(None, description="PEM file of our private key, in PKCS#8 form.")
    key_password: SecretStr | None = Field(None, description="Password of the private key.")
    truststore: str | None = Field(None, description="JKS or PKCS12 file of the authorities to trust, instead of `ca`.")
    truststore_password: SecretStr | None = Field(None, description="Password of the trust store.")
    keystore: str | None = Field(
        None, description="PKCS12 file of our certificate and key, instead of `certificate` and `key`."
    )
    keystore_password: SecretStr | None = Field(None, description="Password of the key store.")
    verify_hostname: bool = Field(True, description="Whether the broker's certificate must be for the host we asked.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.ca is not None and self.truststore is not None:
            raise PydanticCustomError("kafka-security", "write either `ca` or `truststore`, not both")
        if (self.certificate is None) != (self.key is None):
            raise PydanticCustomError("kafka-security", "`certificate` and `key` belong together")
        if self.certificate is not None and self.keystore is not None:
            raise PydanticCustomError("kafka-security", "write either `certificate` and `key` or `keystore`, not both")
        return self

    def java_properties(self, context: Context) -> dict[str, str]:
        properties: dict[str, str] = {}
        trusted = self._trusted(context)
        if trusted is not None:
            properties |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": trusted}
        if self.certificate is not None and self.key is not None:
            properties["ssl.keystore.type"] = "PEM"
            properties["ssl.keystore.certificate.chain"] = _text(context, self.certificate)
            properties["ssl.keystore.key"] = _text(context, self.key)
        if self.keystore is not None:
            properties |= {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": _pkcs12(context, self.keystore)}
        if not self.verify_hostname:
            properties["ssl.endpoint.identification.algorithm"] = ""
        return properties | self._passwords()

    def librdkafka_properties(self, context: Context) -> dict[str, str]:
        properties: dict[str, str] = {}
        trusted = self._trusted(context)
        if trusted is not None:
            properties["ssl.ca.pem"] = trusted
        if self.certificate is not None and self.key is not None:
            properties["ssl.certificate.pem"] = _text(context, self.certificate)
            properties["ssl.key.pem"] = _text(context, self.key)
        if self.keystore is not None:
            properties["ssl.keystore.location"] = _pkcs12(context, self.keystore)
        if not self.verify_hostname:
            properties["ssl.endpoint.identification.algorithm"] = "none"
        return properties | self._passwords()

    def _passwords(self) -> dict[str, str]:
        passwords = {"ssl.key.password": self.key_password, "ssl.keystore.password": self.keystore_password}
        return {name: secret.get_secret_value() for name, secret in passwords.items() if secret is not None}

    def _trusted(self, context: Context) -> str | None:
        if self.ca is not None:
            return _text(context, self.ca)
        if self.truststore is None:
            return None
        password = self.truststore_password
        return certificates_of(_existing(context, self.truststore), password.get_secret_value() if password else "")


def certificates_of(store: Path, password: str) -> str:
    """The certificates in a JKS or PKCS12 trust store as PEM; Java's own keytool reads it."""
    home = os.environ.get("JAVA_HOME")
    keytool = shutil.which("keytool", path=str(Path(home, "bin")) if home else None)
    if keytool is None:
        hint = "install Java 17 or newer, or set JAVA_HOME"
        raise ProjectError("java-missing", "there is no keytool next to java", hint=hint)
    listing = subprocess.run(
        [keytool, "-list", "-rfc", "-keystore", str(store), "-storepass:env", "HEADRACE_STORE_PASSWORD"],
        env={**os.environ, "HEADRACE_STORE_PASSWORD": password},
        capture_output=True,
        text=True,
        check=False,
    )
    certificates = _CERTIFICATE.findall(listing.stdout)
    if listing.returncode != 0 or not certificates:
        reason = listing.stdout.strip().splitlines()[-1:] if listing.returncode else ["it holds no certificate"]
        raise ProjectError(
            "kafka-tls-file", f"cannot read the trust store {store}: {' '.join(reason)}", hint="check file and password"
        )
    return "\n".join(certificates) + "\n"


def _existing(context: Context, name: str) -> Path:
    path = Path(context.path(name))
    if not path.is_file():
        raise ProjectError("missing-file", f"no file {path}", hint="paths are relative to the project folder")
    return path


def _text(context: Context, name: str) -> str:
    return _existing(context, name).read_text()


def _pkcs12(context: Context, name: str) -> str:
    path = _existing(context, name)
    with path.open("rb") as file:
        if file.read(4) == _JKS_MAGIC:
            raise ProjectError(
                "kafka-tls-file",
                f"{path} is a JKS key store; a PKCS12 one is needed",
                hint=f"run: keytool -importkeystore -deststoretype PKCS12 -destkeystore store.p12 -srckeystore {path}",
            )
    return str(path)
