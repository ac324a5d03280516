"""The messages that the jobs here are about, and migrated projects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.cli.terminal.folders import write_files
from headrace.core.encoding.descriptors import compile_text
from headrace.migrate.dagger import migrate
from headrace.migrate.draft import Draft

JOBS = Path(__file__).parent / "jobs"
MESSAGES = """
syntax = "proto3";
package shop.v1;
option java_package = "com.shop";
option java_multiple_files = true;
import "google/protobuf/timestamp.proto";
message Place { double latitude = 1; double longitude = 2; }
message BookingLog {
  string order_number = 1; string service_type = 2; string customer_id = 3; string status = 4;
  google.protobuf.Timestamp event_timestamp = 5; Place pickup = 6; Place dropoff = 7; repeated string tags = 8;
}
message PaymentLog { string order_number = 1; string method = 2; google.protobuf.Timestamp paid_at = 3; }
message Payment { string method = 1; }
message PaidBookingKey { string order_number = 1; }
message PaidBooking {
  string order_number = 1; string service_type = 2; Payment payment = 3; google.protobuf.Timestamp event_timestamp = 4;
}
message EnrichedBooking {
  string order_number = 1; string customer_id = 2; string customer_name = 3;
  google.protobuf.Timestamp event_timestamp = 4;
}
message BookingCount {
  string service_type = 1; int64 bookings = 2; google.protobuf.Timestamp window_timestamp = 3;
}
"""


@pytest.fixture(scope="session")
def descriptors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("descriptors") / "messages.desc"
    file.write_bytes(compile_text({"shop.proto": MESSAGES}, "shop.proto"))
    return file


@pytest.fixture
def migrated(tmp_path: Path, descriptors: Path) -> Callable[[str], tuple[Draft, Path]]:
    """Migrates one of the jobs here; gives the draft and the folder of the project."""

    def make(job: str) -> tuple[Draft, Path]:
        [file] = JOBS.glob(f"{job}.*")
        draft = migrate(file, descriptors)
        folder = tmp_path / job
        write_files(folder, draft.files)
        return draft, folder

    return make
