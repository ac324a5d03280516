"""TLS towards a service. The contents of the files are sent to the workers, which need no copy of the files."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from headrace.core.component import Options
from headrace.core.context import Context
from headrace.core.errors import ProjectError


class ServiceTls(Options):
    """Whom to trust and, if the server asks, who we are. `{}` trusts the authorities known to the machine."""

    ca: str | None = Field(
        None, description="PEM file of the certificate authorities to trust.", examples=["tls/ca.pem"]
    )
    certificate: str | None = Field(None, description="PEM file of our certificate (and its chain).")
    key: str | None = Field(None, description="PEM file of our private key, without a password.")
    verify: bool = Field(True, description="Whether the server's certificate must be trusted and for its host.")

    @model_validator(mode="after")
    def _check_pair(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("`certificate` and `key` belong together")
        return self

    def texts(self, context: Context) -> TlsTexts:
        return TlsTexts(
            ca=_text(context, self.ca),
            certificate=_text(context, self.certificate),
            key=_text(context, self.key),
            verify=self.verify,
        )


@dataclass(frozen=True)
class TlsTexts:
    """The contents of the files; pickled to the workers."""

    ca: str | None = None
    certificate: str | None = None
    key: str | None = field(default=None, repr=False)
    verify: bool = True

    def ssl_context(self) -> ssl.SSLContext:
        """A context for clients that use Python's TLS."""
        context = ssl.create_default_context(cadata=self.ca)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate is not None:
            with self.files() as paths:
                context.load_cert_chain(paths["certificate"], paths["key"])
        return context

    @contextmanager
    def files(self) -> Iterator[dict[str, str]]:
        """The contents as private temporary files, for clients that need paths."""
        with tempfile.TemporaryDirectory(prefix="headrace-tls-") as folder:
            paths = {}
            for name in ("ca", "certificate", "key"):
                text = getattr(self, name)
                if text is not None:
                    path = Path(folder, f"{name}.pem")
                    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
                        file.write(text)
                    paths[name] = str(path)
            yield paths


def _text(context: Context, name: str | None) -> str | None:
    if name is None:
        return None
    path = Path(context.path(name))
    if not path.is_file():
        raise ProjectError("missing-file", f"no file {path}", hint="paths are relative to the project folder")
    return path.read_text()
