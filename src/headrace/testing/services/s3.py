"""An S3-compatible object store: the Versity gateway over a folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from headrace.core.files.object_store import ObjectStore
from headrace.testing.services.ports import HOST
from headrace.testing.services.probe import http_get
from headrace.testing.services.service import Service


@dataclass(frozen=True)
class S3(Service):
    """A store with conditional puts; its buckets are the folders in its data."""

    kind: ClassVar[str] = "s3"
    binary: ClassVar[str] = "versitygw"
    go_module: ClassVar[str] = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"

    access_key: str = "headrace"
    secret_key: str = "headrace-secret"  # noqa: S105  # of a server on loopback, for tests

    @classmethod
    def install_hint(cls) -> str:
        """It is built from source: no package exists."""
        return f"install Go (1.24 or newer), then run: headrace services install {cls.kind}"

    def prepare(self, chosen: Mapping[str, int]) -> list[str]:
        """What others keep in extended attributes is in files of its own: not every file system has them."""
        about = self.home / "about"
        for folder in (self.data, about):
            folder.mkdir(parents=True, exist_ok=True)
        where = ["--port", f"{HOST}:{chosen['client']}", "--health", "/health", "--quiet"]
        return [str(self.find_binary()), *where, "posix", "--sidecar", str(about), str(self.data)]

    def process_env(self) -> dict[str, str]:
        """With the keys of its only user, which would else stand on its command line."""
        own = {"ROOT_ACCESS_KEY": self.access_key, "ROOT_SECRET_KEY": self.secret_key}
        return {**super().process_env(), **own}

    def answers(self) -> bool:
        """Whether it is healthy."""
        answer = http_get(self.port, "/health")
        return answer is not None and answer[0] == 200

    def make_bucket(self, name: str) -> None:
        (self.data / name).mkdir()

    @property
    def store(self) -> ObjectStore:
        """The options to reach it."""
        return ObjectStore.model_validate(
            {"endpoint": f"http://{self.address}", "access_key": self.access_key, "secret_key": self.secret_key}
        )

    @property
    def env(self) -> dict[str, str]:
        """Where clients connect, and as whom."""
        return {
            "AWS_ENDPOINT_URL": f"http://{self.address}",
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": "us-east-1",
        }
