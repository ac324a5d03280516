"""Writer schemas by id, from a schema registry over HTTP or from files of the project."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from pydantic import Field, SecretStr, model_validator

from headrace.core.component import Options
from headrace.core.context import Context
from headrace.core.encoding.descriptors import read_file
from headrace.core.runtime.backoff import Backoff
from headrace.systems.http.download import DownloadError, TooLongError, download

_RETRIES = 4
_BACKOFF = Backoff(first=0.25, longest=2.0)

_cache: dict[tuple[str, str], dict[str, Any] | None] = {}


class Registry(Options):
    """Where the schemas of framed records are looked up by their id."""

    url: str | None = Field(
        None, description="Address of a schema registry.", examples=["http://127.0.0.1:8081"], pattern="^https?://"
    )
    headers: dict[str, SecretStr] = Field({}, description="HTTP headers of every request, e.g. Authorization.")
    timeout: float = Field(10.0, description="Seconds to wait for one answer.", gt=0)
    files: dict[int, str] = Field(
        {}, description="Schema files of the project by schema id.", examples=[{7: "schemas/order.avsc"}]
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> Registry:
        if (self.url is None) == (not self.files):
            raise ValueError("give either `url` or `files`")
        return self

    def schemas(self, context: Context) -> Schemas:
        """Looks schemas up in a worker; the contents of files are pickled with it."""
        contents = {schema_id: read_file(context, path, "schema") for schema_id, path in self.files.items()}
        headers = {name: value.get_secret_value() for name, value in self.headers.items()}
        return Schemas(self.url, _Hidden(headers), self.timeout, contents)


class _Hidden(dict[str, str]):
    """Headers may hold secrets, and reprs end up in logs."""

    def __repr__(self) -> str:
        return f"{{{', '.join(f'{name}: ***' for name in self)}}}"


class RegistryUnreachableError(RuntimeError):
    """The registry did not answer: not a fault of the records, so the batch must be retried."""


@dataclass(frozen=True)
class Schemas:
    """Schemas by id. Answers are cached for the life of the process: the schema of an id never changes."""

    url: str | None
    headers: Mapping[str, str]
    timeout: float
    contents: Mapping[int, bytes] = field(repr=False)

    def text(self, schema_id: int) -> bytes | None:
        """The schema with this id, None when there is none."""
        if self.url is None:
            return self.contents.get(schema_id)
        answer = self._get(f"/schemas/ids/{schema_id}")
        return None if answer is None else str(answer["schema"]).encode()

    def references(self, schema_id: int) -> dict[str, str]:
        """The texts of all schemas that a schema imports, by the names of the imports."""
        if self.url is None:
            return {}
        texts: dict[str, str] = {}
        references = list((self._get(f"/schemas/ids/{schema_id}") or {}).get("references", []))
        while references:
            reference = references.pop()
            name, subject, version = reference["name"], quote(reference["subject"], safe=""), reference["version"]
            if name in texts:
                continue
            answer = self._get(f"/subjects/{subject}/versions/{version}")
            if answer is not None:
                texts[name] = answer["schema"]
                references += answer.get("references", [])
        return texts

    def _get(self, path: str) -> dict[str, Any] | None:
        key = (str(self.url), path)
        if key not in _cache:
            answer = self._fetch(path)
            if answer is None:  # a schema may be registered later
                return None
            _cache[key] = answer
        return _cache[key]

    def _fetch(self, path: str) -> dict[str, Any] | None:
        address = str(self.url).rstrip("/") + path
        try:
            reply = download(
                address, self.headers, timeout=self.timeout, backoff=_BACKOFF, retries=_RETRIES, use_proxies=True
            )
            if reply.status == 404:
                return None
            if not reply.ok:
                raise RegistryUnreachableError(f"the schema registry refused {address}: HTTP {reply.status}")
            answer: dict[str, Any] = json.loads(reply.body)
            return answer
        except (DownloadError, TooLongError, ValueError) as error:
            raise RegistryUnreachableError(f"the schema registry did not answer {address}: {error}") from error
