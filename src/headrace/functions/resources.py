"""What functions need of a project: where lookups are kept, and what its messages look like."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from headrace.core.format import Decoder


class MessageCatalog(Protocol):
    """The protobuf messages of a project."""

    def only(self) -> str:
        """The message that is meant where none is named; an error when there are several."""
        ...

    def decoder(self, message: str, column: str) -> Decoder:
        """A decoder of one field of a message."""
        ...


@dataclass(frozen=True)
class Resources:
    """What a project has to offer; nothing outside of one."""

    lookups: str | None = None
    """A folder or URI that holds `dart-get/` and `dart-contains/`."""
    refresh: timedelta = timedelta(hours=1)
    messages: MessageCatalog | None = None
