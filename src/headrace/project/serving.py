"""The section `serve:`: how endpoints are stored, served and protected."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import ByteSize, Field, SecretStr, field_validator, model_validator

from headrace.core.component import Options
from headrace.core.context import Context
from headrace.core.durations import Duration
from headrace.core.log_topics import LogTopics
from headrace.systems.kafka.connection import KafkaConnection


class SqlLimits(Options):
    """Limits of one query of `POST /sql`."""

    time: Duration = Field(timedelta(seconds=10), description="The longest run time of a query.")
    memory: ByteSize = Field(ByteSize(256_000_000), description="Memory of a query and its result.", examples=["256MB"])
    rows: int = Field(10_000, ge=1, description="Rows of a result; more are cut off, and the result says so.")
    at_once: int = Field(2, ge=1, description="Concurrent queries per API worker; others wait or get a 429.")


class Limits(Options):
    """Limits of one request."""

    body: ByteSize = Field(ByteSize(1_000_000), description="Bytes of a request's body.", examples=["1MB"])
    page: int = Field(1_000, ge=1, description="Rows of one page.")
    scan: int = Field(100_000, ge=1, description="Rows that a query without a suitable index may read.")
    requests_per_second: float | None = Field(
        None, gt=0, description="Per token, and per address without one; null: no limit. A key may have its own."
    )
    subscribers: int = Field(1_000, ge=1, description="Live subscriptions per API worker.")
    sql: SqlLimits = Field(SqlLimits(), description="Limits of one query of `POST /sql`.")


class Access(Options):
    """What a token may read of one endpoint."""

    fields: list[str] | None = Field(None, description="Only these columns; null: all.", examples=[["id", "name"]])
    filter: dict[str, Any] | None = Field(
        None, description="Only rows that match this filter.", examples=[{"region": {"$eq": "EU"}}]
    )


class ApiKey(Options):
    """A key that callers send as `Authorization: Bearer …` or `X-API-Key: …`."""

    name: str = Field(description="The name of its owner; the name is logged, the key never.", examples=["dashboard"])
    sha256: str = Field(
        pattern=r"^[0-9a-f]{64}$", description="The SHA-256 of the key; `headrace token create --api-key` prints both."
    )
    scopes: list[Literal["read", "events", "sql", "write", "admin"]] = Field(
        default=["read"],
        description="The granted scopes; write is for pushing to tables, admin includes all.",
        examples=[["read", "sql"]],
    )
    endpoints: dict[str, Access] | None = Field(
        None, description="Only these endpoints; null: all endpoints, all rows and columns."
    )
    tables: list[str] | None = Field(
        None,
        description="With the scope write: only these tables; null: all tables that accept pushes.",
        examples=[["orders"]],
    )
    requests_per_second: float | None = Field(None, gt=0, description="Overrides the general limit.")


class Jwt(Options):
    """Signed tokens with an expiry, created by `headrace token create` or any issuer with the same key."""

    secret: SecretStr | None = Field(
        None, min_length=32, description="The secret of HS256 tokens.", examples=["${secret:SERVE_SECRET}"]
    )
    public_key: str | None = Field(None, description="A file with the public key of RS256, ES256 or EdDSA tokens.")
    audience: str | None = Field(None, description="The required `aud`; default: the name of the project.")
    issuer: str | None = Field(None, description="The required `iss`; null: any.")
    leeway: Duration = Field(timedelta(seconds=5), description="How far clocks may differ.")

    @model_validator(mode="after")
    def _one_key(self) -> Jwt:
        if (self.secret is None) == (self.public_key is None):
            raise ValueError("needs exactly one of 'secret' and 'public_key'")
        return self


class AuthSpec(Options):
    """Authentication. Without keys and tokens, only callers on this machine are served."""

    keys: list[ApiKey] = Field(default=[], description="API keys.")
    jwt: Jwt | None = Field(None, description="Signed tokens.")

    @field_validator("keys")
    @classmethod
    def _names_once(cls, keys: list[ApiKey]) -> list[ApiKey]:
        names = [key.name for key in keys]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"the name '{repeated[0]}' is used twice")
        return keys

    @property
    def wanted(self) -> bool:
        """Whether callers need a token."""
        return bool(self.keys) or self.jwt is not None


class SnapshotsSpec(Options):
    """Snapshots of the store: a new node starts from one, and the log before them is truncated."""

    path: str | None = Field(
        None,
        description="Folder, or `s3://BUCKET/PATH`; default: `snapshots` next to the logs.",
        examples=["s3://shop/snapshots"],
    )
    every: Duration = Field(timedelta(minutes=10), description="Time between snapshots, if there were changes.")
    keep: Annotated[int, Field(ge=1)] = Field(3, description="How many valid snapshots are kept.")


class TopicsSpec(KafkaConnection):
    """Kafka topics for the changes. Definitions of endpoints and the served version stay in the log's folder."""

    prefix: str = Field(
        "headrace",
        pattern=r"^[A-Za-z0-9_.-]+$",
        max_length=80,
        description="The prefix of topic names: PREFIX.ENDPOINT.vN.ID.changes and ….commits.",
    )
    replication: int | None = Field(None, ge=1, description="Replicas of each topic; default: that of the cluster.")

    def reached(self, context: Context) -> LogTopics:
        """The connection settings of a log."""
        return LogTopics(self.prefix, self.replication, self.librdkafka_properties(context))


class ServeSpec(Options):
    """How endpoints are served. `headrace run` starts a serve node with the engine, `headrace serve` only a node."""

    enabled: bool = Field(True, description="Whether `headrace run` serves the project's endpoints, if it has any.")
    host: str = Field("127.0.0.1", description="The address to listen on; one that is not loopback needs `auth`.")
    port: int = Field(9480, ge=0, le=65535, description="The port of REST and live events; 0: any free port.")
    grpc_port: int | None = Field(9481, ge=0, le=65535, description="The port of gRPC; 0: any free port; null: none.")
    workers: int = Field(2, ge=1, le=64, description="API worker processes; gRPC has as many of its own.")
    log: str | None = Field(
        None, description="Folder or `s3://BUCKET/PATH` of the logs of changes; default: `log` in the state folder."
    )
    topics: TopicsSpec | None = Field(
        None,
        description="Store changes in Kafka topics instead of files; applies to new logs.",
        examples=[{"brokers": "localhost:9092"}],
    )
    store: str = Field(".headrace/store", description="Local folder of the store.")
    events: int = Field(100_000, ge=1_000, description="Past changes per endpoint that a subscriber can resume from.")
    snapshots: SnapshotsSpec = Field(SnapshotsSpec(), description="Copies of the store for new nodes.")
    limits: Limits = Field(Limits(), description="Limits of one request.")
    auth: AuthSpec = Field(AuthSpec(), description="Authentication.")
    cors: list[str] = Field(
        default=[], description="Origins of pages that may call the API from a browser.", examples=[["https://a.shop"]]
    )
