"""Versions that generations of a view fill: each starts without the rows of the generation before."""

from __future__ import annotations

from headrace.core.context import Batch
from headrace.log.folder import LogFolder
from headrace.sinks._views import begins


def view_builder(logs: LogFolder, name: str, batch: Batch, writer: str) -> str | None:
    """The builder of the version for a batch of a view; None: the version that changes are written to anyway.

    A new generation lacks rows of the one before, so it fills a new version, which is served once the flow has caught
    up. An unfinished version of an earlier generation is dropped.
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
