"""The rewind of an endpoint: a new version with the first batches of another, copied from its log without Spark."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.core.capabilities import Rewind, replayed_rows_lost
from headrace.core.errors import Exit, ProjectError
from headrace.log.folder import LogFolder, Version


@dataclass(frozen=True)
class EndpointRewind:
    """A version and the batches of it that stay."""

    version: Version
    """The version with batches to remove."""
    kept: int
    """The last position that stays."""
    batches: int
    """The number of batches."""


def plan_rewind(logs: LogFolder, name: str, rewind: Rewind) -> EndpointRewind | None:
    """The batches to keep; None when none has to be removed. A ProjectError when the rewind is impossible."""
    version = logs.newest(name)
    if version is None:
        return None
    log = logs.log(version)
    end, begin = log.end(), log.begin()
    if not end:
        return None
    segments = log.after(begin - 1, end)
    kept = max((one.position for one in segments if rewind.keeps(one.mark.generation, one.mark.batch)), default=0)
    if kept == end:
        return None
    if begin > 1:
        raise ProjectError(
            "rewind-history-gone",
            f"endpoint {name} can no longer go back: its log begins with batch {begin} of {end}, what was before is in "
            "snapshots only",
            hint=f"rewind without --replace, or fill a new version: headrace run --new-generation {rewind.flow} "
            "--beside",
            exit_code=Exit.CONFLICT,
        )
    if rewind.last_kept is not None and any(
        one.mark.generation.startswith("replay-") for one in segments if one.position > kept
    ):
        raise replayed_rows_lost(rewind, f"endpoint {name}")
    return EndpointRewind(version, kept, end)


def go_back(logs: LogFolder, name: str, rewind: Rewind) -> None:
    """Fill a new version with the batches that stay, and serve it. Idempotent."""
    builder = f"{rewind.flow}/{rewind.sink}/{rewind.generation} rewind"
    if any(version.builder == builder and version.ready for version in logs.details(name)):
        return
    plan = plan_rewind(logs, name, rewind)
    if plan is None:
        return
    source = logs.log(plan.version)
    target = logs.define(plan.version.endpoint, builder)
    for segment in source.after(0, plan.kept):
        target.take_in(source, segment)
    logs.publish(name, builder)
