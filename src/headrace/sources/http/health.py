"""Health of a stream for load balancers: whether records are accepted, in the form that the project declares."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from headrace.core.component import Options
from headrace.core.endpoints import RESERVED
from headrace.sources.http.replies import HEALTH_WORDS, REFUSAL_WORDS, require_words

PATH = r"^(/[A-Za-z0-9_-]+)+$"
_OWN = "health"


class HttpHealth(Options):
    """The answer to GET, without a token: whether a record is accepted now.

    It is if the backlog has room and a small file can be written next to the inbox, which is tried at most once a
    second. Endpoints do not matter.
    """

    path: str = Field(
        pattern=PATH,
        max_length=200,
        description="Path of the answer. `/health` replaces the node's own document about endpoints.",
        examples=["/health", "/v1/telemetry/health"],
    )
    status: int = Field(503, ge=500, le=599, description="The status if records are not accepted.")
    reply: Any = Field(
        {"status": "ready"},
        description="The JSON if records are accepted. Texts that are replaced: {now}.",
        examples=[{"id": "api.health", "ets": "{now}", "responseCode": "SUCCESS"}],
    )
    refusal: Any = Field(
        None,
        description=f"The JSON if not; default: as everywhere in the API. Texts that are replaced: "
        f"{', '.join(f'{{{word}}}' for word in REFUSAL_WORDS)}.",
        examples=[{"id": "api.health", "params": {"err": "{code}"}, "responseCode": "{fault}"}],
    )

    @field_validator("path")
    @classmethod
    def _free(cls, path: str) -> str:
        return path if path == f"/{_OWN}" else free_path(path)

    @field_validator("reply")
    @classmethod
    def _words_of_replies(cls, reply: Any) -> Any:
        return require_words(reply, HEALTH_WORDS)

    @field_validator("refusal")
    @classmethod
    def _words_of_refusals(cls, refusal: Any) -> Any:
        return require_words(refusal, REFUSAL_WORDS)


def free_path(path: str) -> str:
    """The path; raises ValueError when the API uses it."""
    first = path.split("/")[1]
    if first in RESERVED:
        raise ValueError(f"begins with '/{first}', which the API uses; choose another path")
    return path
