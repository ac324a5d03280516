"""What may stand under `serve:`: how endpoints are kept, served and guarded."""

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
    """What one question to `POST /sql` may use."""

    time: Duration = Field(timedelta(seconds=10), description="How long it may take.")
    memory: ByteSize = Field(
        ByteSize(256_000_000), description="Memory for the answer and on the way to it.", examples=["256MB"]
    )
    rows: int = Field(10_000, ge=1, description="Rows of an answer; more are cut off, and the answer says so.")
    at_once: int = Field(2, ge=1, description="Questions at the same time, per API worker; others wait or get a 429.")


class Limits(Options):
    """What one request may ask for."""

    body: ByteSize = Field(ByteSize(1_000_000), description="Bytes of a request's body.", examples=["1MB"])
    page: int = Field(1_000, ge=1, description="Rows of one page.")
    scan: int = Field(100_000, ge=1, description="Rows that a query without a fitting index may look at.")
    requests_per_second: float | None = Field(
        None, gt=0, description="Per token, and per address without one; null: no limit. A key may have its own."
    )
    subscribers: int = Field(1_000, ge=1, description="Live subscriptions per API worker.")
    sql: SqlLimits = Field(SqlLimits(), description="What one question to `POST /sql` may use.")


class Access(Options):
    """What a token may see of one endpoint."""

    fields: list[str] | None = Field(None, description="Only these columns; null: all.", examples=[["id", "name"]])
    filter: dict[str, Any] | None = Field(
        None, description="Only rows that meet this filter.", examples=[{"region": {"$eq": "EU"}}]
    )


class ApiKey(Options):
    """A key that callers show as `Authorization: Bearer …` or `X-API-Key: …`."""

    name: str = Field(description="Whose it is; the name is logged, the key never.", examples=["dashboard"])
    sha256: str = Field(
        pattern=r"^[0-9a-f]{64}$", description="The key's SHA-256; `headrace token create --api-key` gives both."
    )
    scopes: list[Literal["read", "events", "sql", "write", "admin"]] = Field(
        default=["read"],
        description="What it allows; write is for pushing to tables, admin allows all of it.",
        examples=[["read", "sql"]],
    )
    endpoints: dict[str, Access] | None = Field(None, description="Only these endpoints; null: all of them, whole.")
    tables: list[str] | None = Field(
        None,
        description="With the scope write: only these tables; null: all that are pushed to.",
        examples=[["orders"]],
    )
    requests_per_second: float | None = Field(None, gt=0, description="Instead of the limit for all.")


class Jwt(Options):
    """Signed tokens with an expiry. `headrace token create` makes them; so can any issuer with the same key."""

    secret: SecretStr | None = Field(
        None, min_length=32, description="The secret of HS256 tokens.", examples=["${secret:SERVE_SECRET}"]
    )
    public_key: str | None = Field(None, description="A file with the public key of RS256, ES256 or EdDSA tokens.")
    audience: str | None = Field(None, description="What `aud` must be; default: the name of the project.")
    issuer: str | None = Field(None, description="What `iss` must be; null: anything.")
    leeway: Duration = Field(timedelta(seconds=5), description="How far clocks may differ.")

    @model_validator(mode="after")
    def _one_key(self) -> Jwt:
        if (self.secret is None) == (self.public_key is None):
            raise ValueError("needs exactly one of 'secret' and 'public_key'")
        return self


class AuthSpec(Options):
    """Who may ask. Without any of these, only callers on this machine are served."""

    keys: list[ApiKey] = Field(default=[], description="API keys.")
    jwt: Jwt | None = Field(None, description="Signed tokens.")

    @field_validator("keys")
    @classmethod
    def _names_once(cls, keys: list[ApiKey]) -> list[ApiKey]:
        names = [key.name for key in keys]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"the name '{repeated[0]}' is there twice")
        return keys

    @property
    def wanted(self) -> bool:
        """Whether callers have to show a token."""
        return bool(self.keys) or self.jwt is not None


class SnapshotsSpec(Options):
    """Copies of the store from which a new node starts, and behind which the log is cut off."""

    path: str | None = Field(
        None,
        description="Folder, or `s3://BUCKET/PATH`; default: `snapshots` beside the logs.",
        examples=["s3://shop/snapshots"],
    )
    every: Duration = Field(timedelta(minutes=10), description="Time between two, if there were changes.")
    keep: Annotated[int, Field(ge=1)] = Field(3, description="How many good ones are kept.")


class TopicsSpec(KafkaConnection):
    """Kafka as the place of the changes. What an endpoint is and which version is served stays in the log's folder."""

    prefix: str = Field(
        "headrace",
        pattern=r"^[A-Za-z0-9_.-]+$",
        max_length=80,
        description="How the names of the topics begin: PREFIX.ENDPOINT.vN.ID.changes and ….commits.",
    )
    replication: int | None = Field(None, ge=1, description="Replicas of each topic; default: as the cluster says.")

    def reached(self, context: Context) -> LogTopics:
        """What a log has to know."""
        return LogTopics(self.prefix, self.replication, self.librdkafka_properties(context))


class ServeSpec(Options):
    """How endpoints are served. `headrace run` starts this beside the engine; `headrace serve` starts it alone."""

    enabled: bool = Field(True, description="Whether `headrace run` serves the project's endpoints, if it has any.")
    host: str = Field("127.0.0.1", description="The address to listen on; others than this machine's need `auth`.")
    port: int = Field(9480, ge=0, le=65535, description="The port of REST and live events; 0 is any free one.")
    grpc_port: int | None = Field(9481, ge=0, le=65535, description="The port of gRPC; 0 is any free one; null: none.")
    workers: int = Field(2, ge=1, le=64, description="API worker processes; as many again for gRPC.")
    log: str | None = Field(
        None, description="Folder or `s3://BUCKET/PATH` of the logs of changes; default: `log` in the state folder."
    )
    topics: TopicsSpec | None = Field(
        None,
        description="Keep the changes in Kafka topics instead of files; for logs that begin from now on.",
        examples=[{"brokers": "localhost:9092"}],
    )
    store: str = Field(".headrace/store", description="Local folder for the copies that answer requests.")
    events: int = Field(100_000, ge=1_000, description="Past changes per endpoint that a subscriber can resume from.")
    snapshots: SnapshotsSpec = Field(SnapshotsSpec(), description="Copies of the store for new nodes.")
    limits: Limits = Field(Limits(), description="What one request may ask for.")
    auth: AuthSpec = Field(AuthSpec(), description="Who may ask.")
    cors: list[str] = Field(
        default=[], description="Origins of pages that may call the API from a browser.", examples=[["https://a.shop"]]
    )
