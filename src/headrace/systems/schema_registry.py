"""Where writer schemas come from: a schema registry over HTTP, or files of the project by schema id."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field, SecretStr, model_validator

from headrace.core.component import Options
from headrace.core.context import Context
from headrace.core.encoding.descriptors import read_file

_RETRIES = 4
_FIRST_WAIT = 0.25

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
        """What looks schemas up in a worker; files are read here and travel with it."""
        contents = {schema_id: read_file(context, path, "schema") for schema_id, path in self.files.items()}
        headers = {name: value.get_secret_value() for name, value in self.headers.items()}
        return Schemas(self.url, _Hidden(headers), self.timeout, contents)


class _Hidden(dict[str, str]):
    """Headers may hold secrets, and reprs end up in logs."""

    def __repr__(self) -> str:
        return f"{{{', '.join(f'{name}: ***' for name in self)}}}"


class RegistryUnreachableError(RuntimeError):
    """The registry did not answer: not a fault of the records, so the batch must be tried again."""


@dataclass(frozen=True)
class Schemas:
    """Schemas by id. Answers are kept for the life of the process: an id never changes its meaning."""

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
        """The texts of all schemas that a schema imports, by the names it imports them by."""
        if self.url is None:
            return {}
        found: dict[str, str] = {}
        waiting = list((self._get(f"/schemas/ids/{schema_id}") or {}).get("references", []))
        while waiting:
            one = waiting.pop()
            if one["name"] in found:
                continue
            answer = self._get(f"/subjects/{urllib.request.quote(one['subject'], safe='')}/versions/{one['version']}")  # type: ignore[attr-defined]
            if answer is not None:
                found[one["name"]] = answer["schema"]
                waiting += answer.get("references", [])
        return found

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
        wait, last = _FIRST_WAIT, ""
        for attempt in range(_RETRIES + 1):
            if attempt:
                time.sleep(wait)
                wait *= 2
            try:
                return self._answer(address)
            except (OSError, ValueError) as error:
                if isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code != 429:
                    if error.code == 404:
                        return None
                    raise RegistryUnreachableError(
                        f"the schema registry refused {address}: HTTP {error.code}"
                    ) from error
                last = str(error)
        raise RegistryUnreachableError(f"the schema registry did not answer {address}: {last}")

    def _answer(self, address: str) -> dict[str, Any]:
        request = urllib.request.Request(address, headers=dict(self.headers))  # noqa: S310 — the model allows http(s) only
        with urllib.request.urlopen(request, timeout=self.timeout) as response:  # noqa: S310
            answer: dict[str, Any] = json.load(response)
            return answer
