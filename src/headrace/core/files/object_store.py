"""The options of an object store."""

from __future__ import annotations

import os

from pydantic import Field, SecretStr, model_validator

from headrace.core.component import Options


class ObjectStore(Options):
    """How an S3-compatible object store is reached. What is not said comes from the environment (`AWS_…`) or from the
    machine's own role."""

    endpoint: str | None = Field(
        None,
        description="The address of a store that is not Amazon's. Default: $AWS_ENDPOINT_URL, else Amazon's own.",
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
        description="Whether a bucket is named in the path of an address instead of its host name. Default: true when "
        "there is an endpoint.",
    )
    access_key: SecretStr | None = Field(
        None, description="The id of the access key, with `secret_key`.", examples=["${secret:s3_access_key}"]
    )
    secret_key: SecretStr | None = Field(
        None, description="The secret of the access key.", examples=["${secret:s3_secret_key}"]
    )

    @model_validator(mode="after")
    def _key_is_whole(self) -> ObjectStore:
        if (self.access_key is None) != (self.secret_key is None):
            raise ValueError("access_key and secret_key belong together: give both or none")
        return self

    @property
    def address(self) -> str | None:
        """The endpoint, if it is not Amazon's."""
        return self.endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None

    @property
    def place(self) -> str:
        """The region."""
        return self.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"

    @property
    def in_path(self) -> bool:
        """Whether buckets are named in the path."""
        return self.address is not None if self.path_style is None else self.path_style

    def hadoop_settings(self) -> dict[str, str]:
        """What Hadoop's client must be told. Holds secrets: never for a command line or a log."""
        settings = {
            "fs.s3a.endpoint.region": self.place,
            "fs.s3a.path.style.access": str(self.in_path).lower(),
            "fs.s3a.attempts.maximum": "5",
            # the default needs one more library, made for large files that are read in parts
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
