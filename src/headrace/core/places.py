"""Where sinks write and sources read: the planner derives from it which flow feeds which."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

ANY = "*"


@dataclass(frozen=True)
class Location:
    """A topic of a cluster, a folder or a table. `*` in its name matches anything."""

    system: str
    name: str

    def meets(self, other: Location) -> bool:
        """Whether rows that are written to one may be read from the other."""
        if self.system != other.system:
            return False
        return fnmatchcase(self.name, other.name) or fnmatchcase(other.name, self.name)
