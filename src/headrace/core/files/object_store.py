"""The options of an object store."""

from __future__ import annotations

import os

from pydantic import Field, SecretStr, model_validator

from headrace.core.component import Options


class ObjectStore(Options):
    """The connection to an S3-compatible object store.

    Options without a value come from the environment (`AWS_…`) or from the role of the machine.
    """

    endpoint: str | None = Field(
        None,
        description="The URL of a store other than Amazon S3. Default: $AWS_ENDPOINT_URL, else Amazon S3.",
        examples=["https://minio.example.org:9000"],
        pattern=r"^https?://",
    )
    region: str | None = Field(
        None,
        description="The region of the buckets. Default: $AWS_REGION, else us-east-1.",
        examples=["eu-central-1"],
    )
    path_style: bool | None = Field(
        None,
        description="Whether the bucket is in the path of the URL instead of the host name. Default: true when an "
        "endpoint is set.",
    )
    access_key: SecretStr | None = Field(
        None, description="The access key id. Requires `secret_key`.", examples=["${secret:s3_access_key}"]
    )
    secret_key: SecretStr | None = Field(
        None, description="The secret access key.", examples=["${secret:s3_secret_key}"]
    )

    @model_validator(mode="after")
    def _key_is_whole(self) -> ObjectStore:
        if (self.access_key is None) != (self.secret_key is None):
            raise ValueError("access_key and secret_key belong together: set both or none")
        return self

    @property
    def address(self) -> str | None:
        """The endpoint; None for Amazon S3."""
        return self.endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None

    @property
    def place(self) -> str:
        return self.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"

    @property
    def in_path(self) -> bool:
        """Whether the bucket is in the path of the URL."""
        return self.address is not None if self.path_style is None else self.path_style

    def hadoop_settings(self) -> dict[str, str]:
        """Return the settings of Hadoop's S3 client. They hold secrets: never put them in a command line or a log."""
        settings = {
            "fs.s3a.endpoint.region": self.place,
            "fs.s3a.path.style.access": str(self.in_path).lower(),
            "fs.s3a.attempts.maximum": "5",
            # the default needs another library, which is for large files that are read in parts
            "fs.s3a.input.stream.type": "classic",
            # uploads through the asynchronous client fail with the Netty that Spark ships
            "fs.s3a.optimized.copy.from.local.enabled": "false",
            "fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        }
        if self.address is not None:
            settings["fs.s3a.endpoint"] = self.address
            settings["fs.s3a.connection.ssl.enabled"] = str(self.address.startswith("https://")).lower()
        if self.access_key is not None and self.secret_key is not None:
            settings["fs.s3a.access.key"] = self.access_key.get_secret_value()
            settings["fs.s3a.secret.key"] = self.secret_key.get_secret_value()
        return settings
