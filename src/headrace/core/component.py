"""What all kinds share: a component *is* its options, and its options are its YAML keys."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict


class Options(BaseModel):
    """A frozen set of options that refuses keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)


class Component(Options):
    """One kind of source, format, processor or sink. The field `type` holds its name, which is that of its file."""

    family: ClassVar[str]

    @classmethod
    def kind(cls) -> str:
        """The name users write under `type:`."""
        return str(cls.model_fields["type"].default)

    @property
    def label(self) -> str:
        """One short line for plans and messages; never contains a secret."""
        return self.kind()

    def __repr_args__(self) -> Any:
        """Only the kind: options may hold secrets, and reprs end up in logs."""
        return [("type", self.kind())]
