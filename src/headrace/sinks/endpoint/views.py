"""Versions that generations of a view fill: each one begins without the rows of the one before."""

from __future__ import annotations

from headrace.core.context import Batch
from headrace.log.folder import LogFolder
from headrace.sinks._views import begins


def view_builder(logs: LogFolder, name: str, batch: Batch, writer: str) -> str | None:
    """Who fills the version that a batch of a view belongs into; None: it is the one that changes go to anyway.

    A new generation lacks rows that the one before had, so it fills another version, which is served once the flow has
    caught up. What an earlier one has not finished is dropped.
    """
    own = f"{writer}/{batch.generation} anew"
    if logs.newest(name, own) is not None:
        return own
    held = logs.newest(name)
    if not begins(batch) or held is None or logs.log(held).knows(writer, batch.generation):
        return None
    for version in logs.details(name):
        mine = version.builder is not None and version.builder.startswith(f"{writer}/")
        if mine and not version.ready and str(version.builder).endswith(" anew"):
            logs.drop(name, version.number)
    return own
