"""What functions need from a project: its lookup files and its protobuf messages."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from headrace.core.format import Decoder


class MessageCatalog(Protocol):
    """The protobuf messages of a project."""

    def only(self) -> str:
        """The only message of the project; an error if there are several."""
        ...

    def decoder(self, message: str, column: str) -> Decoder: ...


@dataclass(frozen=True)
class Resources:
    """The resources of a project; empty outside of one."""

    lookups: str | None = None
    """A folder or URI that holds `dart-get/` and `dart-contains/`."""
    refresh: timedelta = timedelta(hours=1)
    messages: MessageCatalog | None = None
