"""The page check: it covers LMDB's data format 1 and skips files with a format that it does not know."""

from __future__ import annotations

import logging
import struct
from pathlib import Path

import lmdb
import pytest

from headrace.store.lmdb.errors import StoreDamagedError
from headrace.store.lmdb.pages import check_pages
from headrace.store.rows.layout import FILE

PAGE = 4096
MAGIC_AT, FORMAT_AT = 16, 20


@pytest.fixture
def file(tmp_path: Path) -> Path:
    with lmdb.open(str(tmp_path)) as environment, environment.begin(write=True) as txn:
        txn.put(b"key", b"value")
    return tmp_path / FILE


def write_at(file: Path, at: int, number: int) -> None:
    for meta_page in (0, PAGE):
        with file.open("r+b") as opened:
            opened.seek(meta_page + at)
            opened.write(struct.pack("<I", number))


def test_the_installed_lmdb_writes_the_checked_format(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with file.open("rb") as opened:
        opened.seek(FORMAT_AT)
        assert struct.unpack("<I", opened.read(4)) == (1,)
    check_pages(file)
    assert not caplog.records


def test_an_unknown_format_is_not_checked(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_at(file, FORMAT_AT, 2)
    with caplog.at_level(logging.WARNING):
        check_pages(file)
    (record,) = caplog.records
    assert "unknown LMDB data format 2" in record.getMessage()
    with pytest.raises(lmdb.VersionMismatchError):
        lmdb.open(str(file.parent))


def test_a_file_without_the_magic_number_is_damaged(file: Path) -> None:
    write_at(file, MAGIC_AT, 1)
    with pytest.raises(StoreDamagedError, match="not an LMDB file"):
        check_pages(file)
