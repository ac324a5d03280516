"""`type: http`: records that programs POST to the serve node."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import ByteSize, Field, StringConstraints, field_validator

from headrace.core.context import Context, ReadContext
from headrace.core.durations import Duration
from headrace.core.files.state_files import StatePath
from headrace.core.lazy import lazy_modules
from headrace.core.positions import Positions
from headrace.core.source import PackedPosition, RecordSource
from headrace.log.inbox import Inbox
from headrace.sources.http.fields import FieldFrom
from headrace.sources.http.health import PATH, HttpHealth, free_path
from headrace.sources.http.positions import HttpPositions, inbox_of
from headrace.sources.http.replies import REFUSAL_WORDS, REPLY_WORDS, require_words
from headrace.sources.http.validation import HttpValidation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.sources.http import posted
else:
    posted = lazy_modules("headrace.sources.http.posted")

FieldName = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class HttpSource(RecordSource):
    """JSON documents that programs POST to a path of the serve node: one request is one record.

    Delivery: exactly once into replay-safe sinks. A request is answered when it is durable in the stream's inbox;
    simultaneous requests share one commit. A repeated request with the same `Idempotency-Key` within `max_age` gets an
    answer and adds nothing. Order: as answered, within one API process. Records that all flows of the project have read
    are kept for `retention`, so that flows can be rewound. When more than `max_backlog` is unread, requests get a 503
    and can be retried later. Scale: a commit is a few flushes of the disk, shared by all requests that wait for it;
    each API process holds the idempotency keys of `max_age` in memory. Positions count commits.
    """

    metadata: ClassVar[dict[str, str]] = {"_commit": "bigint", "_number": "int", "_timestamp": "timestamp"}
    position: ClassVar[tuple[str, ...]] = ("_commit", "_number")

    type: Literal["http"] = "http"
    path: str = Field(pattern=PATH, max_length=200, description="Where records are POSTed.", examples=["/v1/telemetry"])
    fields: dict[FieldName, FieldFrom] = Field(
        default={},
        description="Fields of the record that are set or replaced, in this order. A field without a value is removed.",
        examples=[{"did": {"header": "x-device-id"}, "mid": {"field": "mid", "uuid": True}, "syncts": {"now": "ms"}}],
    )
    max_body: ByteSize = Field(
        ByteSize(5_000_000),
        ge=1,
        description="The most bytes of a body, both as sent and decompressed.",
        examples=["5MB"],
    )
    max_backlog: ByteSize = Field(
        ByteSize(1_000_000_000),
        ge=1,
        description="Bytes in the inbox that some flow has not read yet; when there are more, callers get a 503.",
        examples=["1GB"],
    )
    retention: Duration = Field(
        timedelta(hours=1), description="How long records that all flows have read are kept, for rewinds."
    )
    max_age: Duration = Field(timedelta(hours=24), description="How long idempotency keys are remembered.")
    cors: list[str] = Field(
        default=[],
        description='Origins of pages that may send from a browser, with any header; ["*"] is all of them.',
        examples=[["*"], ["https://learn.example.org"]],
    )
    validation: HttpValidation | None = Field(
        None,
        description="Check documents against JSON Schemas before the answer; default: not at all.",
        examples=[{"schemas": "schemas", "schema": "{eid}.json", "documents": "events"}],
    )
    reply: Any = Field(
        None,
        description=f"The JSON reply for an accepted record. Texts that are replaced: "
        f"{', '.join(f'{{{word}}}' for word in REPLY_WORDS)}.",
        examples=[{"id": "api.telemetry", "ets": "{now}", "responseCode": "SUCCESS"}],
    )
    refusal: Any = Field(
        None,
        description=f"The JSON reply for a refused record; default: as everywhere in the API. Texts "
        f"that are replaced: {', '.join(f'{{{word}}}' for word in REFUSAL_WORDS)}.",
        examples=[{"params": {"err": "{code}", "errmsg": "{message}"}, "responseCode": "{fault}"}],
    )
    health: HttpHealth | None = Field(
        None,
        description="Tell load balancers whether records are accepted; default: only the node's own `/health`.",
        examples=[{"path": "/v1/telemetry/health"}],
    )

    @field_validator("path")
    @classmethod
    def _check_path(cls, path: str) -> str:
        return free_path(path)

    @field_validator("reply")
    @classmethod
    def _check_reply(cls, reply: Any) -> Any:
        return require_words(reply, REPLY_WORDS)

    @field_validator("refusal")
    @classmethod
    def _check_refusal(cls, refusal: Any) -> Any:
        return require_words(refusal, REFUSAL_WORDS)

    @property
    def label(self) -> str:
        return f"http POST {self.path}"

    @property
    def reads(self) -> str:
        """The inbox, which is named after the path."""
        return f"what is posted to {self.path}"

    @property
    def packed_position(self) -> PackedPosition:
        """Commit and number: a commit has some ten thousand records at most."""
        return PackedPosition(high="_number", low="_commit")

    def inbox(self, root: StatePath) -> Inbox:
        """The stored records, below the folder of logs."""
        return inbox_of(root, self.path, self.max_age)

    def positions(self, context: Context) -> Positions:
        """Commits of the inbox."""
        return HttpPositions(self.path, self.inbox(context.log_path), self.retention)

    def sample(self, context: Context, limit: int) -> list[bytes]:
        """The oldest records."""
        inbox, records = self.inbox(context.log_path), list[bytes]()
        for _, entries in inbox.after(inbox.begin()):
            records += [row for _, row in entries]
            if len(records) >= limit:
                break
        return records[:limit]

    def read(self, spark: SparkSession, reading: ReadContext) -> DataFrame:
        """The records of the inbox."""
        name = posted.register_posts(spark, self.path, self.max_age, reading)
        return (spark.readStream if reading.streaming else spark.read).format(name).load()
