"""Descriptor sets over HTTP: fetched with retries, stored in the state folder, and refreshed regularly.

The stored copy is used. A newer set replaces it only when it is compatible with the flows.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, SecretStr

from headrace.core.component import Options
from headrace.core.context import Context
from headrace.core.encoding.descriptors import find_message, merged_sets
from headrace.core.encoding.timestamps import utc_now
from headrace.core.errors import Exit, ProjectError
from headrace.core.files.state_files import StatePath, write_atomically
from headrace.core.options.durations import Duration
from headrace.core.runtime.backoff import Backoff
from headrace.systems.http.client import HttpReply
from headrace.systems.http.download import DownloadError, TooLongError, download
from headrace.systems.http.options import check_address

_RETRIES = 4
_BACKOFF = Backoff(first=0.5, longest=4.0)


_ADVICE = "not an address; write http://host/path or https://host/path"
_LOGIN = "write them in `headers`"
Url = Annotated[str, AfterValidator(partial(check_address, advice=_ADVICE, login=_LOGIN))]


class DescriptorRegistry(Options):
    """Descriptor sets from a server, such as Stencil.

    Sets are stored in the state folder, and flows start from there when the server is unavailable. A newer set with
    added fields or enum values is adopted between two batches; one that would change the meaning of records is refused,
    and the stored one stays in use.
    """

    url: Url | list[Url] = Field(
        description="Address(es) of descriptor sets; several are read as one. With `version`, of the schema whose "
        "versions are below `/versions`.",
        examples=["https://stencil.example/v1beta1/namespaces/shop/schemas/orders"],
    )
    headers: dict[str, SecretStr] = Field(
        default={},
        description="HTTP headers of every request; take secrets from `${secret:NAME}`.",
        examples=[{"Authorization": "Bearer ${secret:STENCIL_TOKEN}"}],
    )
    timeout: Duration = Field(
        timedelta(seconds=10), description="How long to wait for one answer, of up to 5 attempts."
    )
    refresh: Duration = Field(
        timedelta(minutes=15), description="How old the stored copy may be before the server is queried again."
    )
    version: Annotated[int, Field(ge=1)] | Literal["newest"] | None = Field(
        None,
        description="A fixed version, which is fetched once, or `newest`: the highest one that is listed at "
        "`/versions`. Default: the document at the address itself.",
        examples=[7, "newest"],
    )

    @property
    def urls(self) -> list[str]:
        return [self.url] if isinstance(self.url, str) else list(self.url)

    def key(self, message: str) -> str:
        """The id of a stored copy: each message has one, since each is accepted separately."""
        return hashlib.sha256(json.dumps([self.urls, self.version, message]).encode()).hexdigest()[:16]

    @property
    def label(self) -> str:
        """The addresses, and a fixed version."""
        fixed = f" version {self.version}" if isinstance(self.version, int) else ""
        return ", ".join(self.urls) + fixed

    def file(self, context: Context, message: str) -> StatePath:
        """The file of the stored copy."""
        return context.state_path / "descriptors" / f"{message}-{self.key(message)}.json"

    def kept(self, context: Context, message: str) -> AcceptedDescriptors | None:
        """The copy that is used; None before the first fetch."""
        try:
            return AcceptedDescriptors.of_json(json.loads(self.file(context, message).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise ProjectError(
                "bad-descriptors",
                f"the stored descriptors in {self.file(context, message)} cannot be read: {error}",
                hint="remove the file; it is fetched again",
            ) from error

    def load(self, context: Context, message: str) -> AcceptedDescriptors:
        """The stored copy or, the first time, that of the server."""
        descriptors = self.kept(context, message)
        if descriptors is None:
            descriptors = self.fetch()
            find_message(descriptors.descriptor_set, message)  # a set without the message must not be stored
            self.keep(context, message, descriptors)
        return descriptors

    def keep(self, context: Context, message: str, descriptors: AcceptedDescriptors) -> None:
        """Store a copy, which is used from now on."""
        write_atomically(self.file(context, message), json.dumps(descriptors.to_json()).encode(), durable=False)

    def is_due(self, stored: AcceptedDescriptors) -> bool:
        """Whether the server must be queried again. A fixed version never changes."""
        return not isinstance(self.version, int) and time.time() - stored.asked_at >= self.refresh.total_seconds()

    def fetch(self, before: AcceptedDescriptors | None = None) -> AcceptedDescriptors:
        """The present sets of the server. Those that are unchanged since `before` are not sent again."""
        known = {part.url: part for part in before.parts} if before is not None else {}
        parts = tuple(self._part(url, known.get(url)) for url in self.urls)
        fetched = AcceptedDescriptors(parts, time.time())
        _ = fetched.descriptor_set  # what is not a descriptor set must not be stored
        return fetched

    def _part(self, url: str, before: RegistryPart | None) -> RegistryPart:
        if self.version is None:
            return self._get_set(url, None, before)
        version = self._newest(url) if self.version == "newest" else self.version
        if before is not None and before.version == version:
            return before
        return self._get_set(url, version, None)

    def _newest(self, url: str) -> int:
        address = f"{url.rstrip('/')}/versions"
        body = self._get(address, {}).body
        try:
            document = json.loads(body)
            versions = document["versions"] if isinstance(document, dict) else document
            return max(int(version) for version in versions)
        except (ValueError, KeyError, TypeError) as error:
            raise ProjectError(
                "bad-descriptors",
                f"{address} does not list versions: {body[:100].decode(errors='replace')!r}",
                hint='expected: [1, 2] or {"versions": [1, 2]}',
            ) from error

    def _get_set(self, url: str, version: int | None, before: RegistryPart | None) -> RegistryPart:
        address = url if version is None else f"{url.rstrip('/')}/versions/{version}"
        condition = {"If-None-Match": before.etag} if before is not None and before.etag else {}
        reply = self._get(address, condition)
        if reply.status == 304 and before is not None:
            return before
        return RegistryPart(url, reply.body, version, reply.headers.get("ETag"))

    def _get(self, address: str, headers: Mapping[str, str]) -> HttpReply:
        own_headers = {name: value.get_secret_value() for name, value in self.headers.items()}
        timeout = self.timeout.total_seconds()
        try:
            reply = download(address, {**own_headers, **headers}, timeout=timeout, backoff=_BACKOFF, retries=_RETRIES)
        except DownloadError as error:
            raise _unreachable(address, str(error)) from error
        except TooLongError as error:
            raise ProjectError(
                "bad-descriptors",
                f"the answer of {address} is longer than {error}",
                hint="a descriptor set is much smaller: check the address",
            ) from error
        if reply.status not in (200, 304):
            raise ProjectError(
                "descriptors-refused",
                f"the descriptor registry answered {address} with HTTP {reply.status}",
                hint="check the address, the version and the headers",
            )
        return reply


@dataclass(frozen=True)
class RegistryPart:
    """The set of one address."""

    url: str
    content: bytes
    version: int | None = None
    etag: str | None = None


@dataclass(frozen=True)
class Refused:
    """A newer set that was refused."""

    digest: str
    reason: str
    at: str


@dataclass(frozen=True)
class AcceptedDescriptors:
    """The descriptors of one registry as they were last accepted."""

    parts: tuple[RegistryPart, ...]
    asked_at: float
    """When the server was last queried."""
    refused: Refused | None = None

    @property
    def descriptor_set(self) -> bytes:
        """All parts as one serialised FileDescriptorSet."""
        return merged_sets({part.url: part.content for part in self.parts})

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.descriptor_set).hexdigest()[:16]

    def refusing(self, other: AcceptedDescriptors, reason: str) -> AcceptedDescriptors:
        """The same, with another set as refused."""
        return replace(self, asked_at=other.asked_at, refused=Refused(other.digest, reason, utc_now()))

    def to_json(self) -> dict[str, Any]:
        parts = [{**asdict(part), "content": base64.b64encode(part.content).decode()} for part in self.parts]
        return {"parts": parts, "asked_at": self.asked_at, "refused": self.refused and asdict(self.refused)}

    @staticmethod
    def of_json(document: Mapping[str, Any]) -> AcceptedDescriptors:
        parts = tuple(
            RegistryPart(**{**part, "content": base64.b64decode(part["content"])}) for part in document["parts"]
        )
        return AcceptedDescriptors(
            parts, float(document["asked_at"]), Refused(**document["refused"]) if document["refused"] else None
        )


def _unreachable(address: str, reason: str) -> ProjectError:
    return ProjectError(
        "descriptors-unreachable",
        f"the descriptor registry did not answer {address}: {reason}",
        hint="check the address and the network; flows that have a stored copy continue with it",
        exit_code=Exit.TRANSIENT,
    )


def listed(value: str | Sequence[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def is_address(value: str | Collection[str] | None) -> bool:
    """Whether all of these are addresses rather than files."""
    texts = [value] if isinstance(value, str) else list(value or [])
    return bool(texts) and all(text.startswith(("http://", "https://")) for text in texts)
