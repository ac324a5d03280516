"""Where sinks write and sources read, so that it can be told which flow feeds which."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

ANY = "*"


@dataclass(frozen=True)
class Location:
    """A topic of a cluster, a folder, a table. `*` in its name stands for anything."""

    system: str
    name: str

    def meets(self, other: Location) -> bool:
        """Whether what is written to one may be read from the other."""
        if self.system != other.system:
            return False
        return fnmatchcase(self.name, other.name) or fnmatchcase(other.name, self.name)
