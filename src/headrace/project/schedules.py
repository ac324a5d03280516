"""Schedules of flows of mode batch."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError
from pydantic import Field, field_validator

from headrace.core.component import Options
from headrace.core.errors import did_you_mean

_ANY_TIME = datetime(2026, 1, 1, tzinfo=UTC)


class ScheduleSpec(Options):
    """The times at which a flow runs, in cron syntax: minute, hour, day of month, month, day of week."""

    cron: str = Field(description="The five fields of cron.", examples=["30 0 * * *", "0 */4 * * MON-FRI"])
    zone: str = Field("UTC", description="The time zone they are meant in.", examples=["Asia/Kolkata"])

    @field_validator("cron")
    @classmethod
    def _valid_cron(cls, cron: str) -> str:
        try:
            if len(cron.split()) != 5:
                raise CronSimError("it needs five fields")
            next(CronSim(cron, _ANY_TIME))
        except CronSimError as error:
            raise ValueError(f"'{cron}' is not a cron expression: {str(error).lower()}") from None
        except StopIteration:
            raise ValueError(f"'{cron}' never occurs") from None
        return cron

    @field_validator("zone")
    @classmethod
    def _known_zone(cls, zone: str) -> str:
        if zone not in available_timezones():
            raise ValueError(f"there is no time zone '{zone}'; {_nearest(zone)}")
        return zone

    def after(self, moment: datetime) -> datetime:
        """The first time after `moment`, in UTC."""
        return next(CronSim(self.cron, moment.astimezone(ZoneInfo(self.zone)))).astimezone(UTC)


def _nearest(zone: str) -> str:
    hint = did_you_mean(zone, available_timezones())
    return hint.partition("?")[0] + "?" if hint.startswith("did") else "such as Europe/Berlin"
