"""The base class of all kinds. A component is its options, and its options are its YAML keys."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict


class Options(BaseModel):
    """A frozen set of options that rejects unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)


class Component(Options):
    """One kind of source, format, processor or sink. The field `type` holds its name, which its module has too."""

    family: ClassVar[str]

    @classmethod
    def kind(cls) -> str:
        """Return the name that users write under `type:`."""
        return str(cls.model_fields["type"].default)

    @property
    def label(self) -> str:
        """A short line for plans and messages. It never contains a secret."""
        return self.kind()

    def __repr_args__(self) -> Any:
        """Show only the kind: options may hold secrets, and reprs end up in logs."""
        return [("type", self.kind())]
