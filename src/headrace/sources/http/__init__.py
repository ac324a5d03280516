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

    Delivery: exactly once into replay-safe sinks. A request is answered when it is durable in the stream's inbox; many
    that come at the same time share one commit. One that comes again with the same `Idempotency-Key` within `max_age`
    gets an answer and adds nothing. Order: as answered, within one API process. What all flows of the project have
    read is kept for `retention` more, so that they can be rewound. When more than `max_backlog` waits to be read,
    callers get a 503 and come back later. Scale: a commit is a few flushes of the disk, shared by all requests that
    wait for it; each API process holds the idempotency keys of `max_age` in memory. Positions count commits.
    """

    metadata: ClassVar[dict[str, str]] = {"_commit": "bigint", "_number": "int", "_timestamp": "timestamp"}
    position: ClassVar[tuple[str, ...]] = ("_commit", "_number")

    type: Literal["http"] = "http"
    path: str = Field(pattern=PATH, max_length=200, description="Where records are POSTed.", examples=["/v1/telemetry"])
    fields: dict[FieldName, FieldFrom] = Field(
        default={},
        description="Fields of the record that do not come from the body as they are, in the order in which they are "
        "set. One for which nothing is found is removed.",
        examples=[{"did": {"header": "x-device-id"}, "mid": {"field": "mid", "uuid": True}, "syncts": {"now": "ms"}}],
    )
    max_body: ByteSize = Field(
        ByteSize(5_000_000), ge=1, description="Bytes of a body, as it is sent and inflated.", examples=["5MB"]
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
        description=f"The JSON that a caller gets for a record that was taken. Texts that are replaced: "
        f"{', '.join(f'{{{word}}}' for word in REPLY_WORDS)}.",
        examples=[{"id": "api.telemetry", "ets": "{now}", "responseCode": "SUCCESS"}],
    )
    refusal: Any = Field(
        None,
        description=f"The JSON that a caller gets when a record is not taken; default: as everywhere in the API. Texts "
        f"that are replaced: {', '.join(f'{{{word}}}' for word in REFUSAL_WORDS)}.",
        examples=[{"params": {"err": "{code}", "errmsg": "{message}"}, "responseCode": "{fault}"}],
    )
    health: HttpHealth | None = Field(
        None,
        description="Tell load balancers whether a record would be taken; default: only the node's own `/health`.",
        examples=[{"path": "/v1/telemetry/health"}],
    )

    @field_validator("path")
    @classmethod
    def _free(cls, path: str) -> str:
        return free_path(path)

    @field_validator("reply")
    @classmethod
    def _words_of_replies(cls, reply: Any) -> Any:
        return require_words(reply, REPLY_WORDS)

    @field_validator("refusal")
    @classmethod
    def _words_of_refusals(cls, refusal: Any) -> Any:
        return require_words(refusal, REFUSAL_WORDS)

    @property
    def label(self) -> str:
        return f"http POST {self.path}"

    @property
    def reads(self) -> str:
        """The inbox, which has its name from the path."""
        return f"what is posted to {self.path}"

    @property
    def packed_position(self) -> PackedPosition:
        """A commit has some ten thousand records at most."""
        return PackedPosition(high="_number", low="_commit")

    def inbox(self, root: StatePath) -> Inbox:
        """The stored records, below the folder of logs."""
        return inbox_of(root, self.path, self.max_age)

    def positions(self, context: Context) -> Positions:
        """Commits of the inbox."""
        return HttpPositions(self.path, self.inbox(context.log_path), self.retention)

    def sample(self, context: Context, limit: int) -> list[bytes]:
        """The oldest records that are there."""
        inbox, found = self.inbox(context.log_path), list[bytes]()
        for _, entries in inbox.after(inbox.begin()):
            found += [row for _, row in entries]
            if len(found) >= limit:
                break
        return found[:limit]

    def read(self, spark: SparkSession, context: ReadContext) -> DataFrame:
        """What is in the inbox, and what comes."""
        name = posted.register_posts(spark, self.path, self.max_age, context)
        return (spark.readStream if context.streaming else spark.read).format(name).load()
